"""Answers to the exercises on layers, as learners write them: right ones in several ways, and, in
`layer_changes.txt`, changes of their text.
"""

import inspect
import pathlib

import keras
import numpy as np
from keras import ops

registered = keras.saving.register_keras_serializable("answers")


@registered
class NadarayaWatson(keras.layers.Layer):
    def __init__(self, bandwidth=1.0, **kwargs):
        super().__init__(**kwargs)
        self.bandwidth = bandwidth
        self.supports_masking = True

    def build(self, query_shape, value_shape, key_shape):
        start = np.log(np.expm1(self.bandwidth))
        self.r = self.add_weight(shape=(), initializer=keras.initializers.Constant(start))

    def call(self, query, value, key, key_mask=None):
        # (B, T, D), (B, S, E), (B, S, D)
        difference = query[:, :, None] - key[:, None]  # (B, T, S, D)
        squares = ops.sum(difference**2, axis=-1)
        bandwidth = ops.softplus(self.r)
        scores = -squares / bandwidth**2 / 2
        visible = True if key_mask is None else key_mask[:, None]  # (B, 1, S)
        weights = ops.softmax(ops.where(visible, scores, -1e9))
        return ops.matmul(weights, value)

    def get_config(self):
        return {**super().get_config(), "bandwidth": self.bandwidth}


@registered
class KernelRegressionByProducts(NadarayaWatson):
    def __init__(self, bandwidth=1.0, **kwargs):
        super().__init__(bandwidth, **kwargs)
        start = keras.initializers.Constant(float(np.log(np.exp(bandwidth) - 1)))
        self.r = self.add_weight(name="r", shape=(1,), initializer=start)
        self.softmax = keras.layers.Softmax()

    def build(self, query_shape, value_shape, key_shape):
        pass

    def call(self, query, value, key, key_mask=None):
        products = ops.einsum("btd,bsd->bts", query, key)
        squares = ops.sum(query**2, axis=-1)[:, :, None] - 2 * products
        squares = squares + ops.sum(key**2, axis=-1)[:, None]
        bandwidth = ops.log(1 + ops.exp(self.r))
        mask = None if key_mask is None else key_mask[:, None]
        return self.softmax(-0.5 * squares / ops.square(bandwidth), mask=mask) @ value


@registered
class AdditiveAttention(keras.layers.Layer):
    def __init__(self, units, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.units, self.dropout = units, dropout
        self.drop = keras.layers.Dropout(dropout)
        self.supports_masking = True

    def build(self, query_shape, value_shape, key_shape):
        self.w_query = self.add_weight(shape=(query_shape[-1], self.units))
        self.w_key = self.add_weight(shape=(key_shape[-1], self.units))
        self.v = self.add_weight(shape=(self.units,), initializer="random_normal")

    def call(self, query, value, key, key_mask=None):
        # (B, T, Dq), (B, S, E), (B, S, Dk)
        q = ops.matmul(query, self.w_query)[:, :, None]  # (B, T, 1, U)
        k = ops.matmul(key, self.w_key)[:, None]  # (B, 1, S, U)
        scores = ops.sum(ops.tanh(q + k) * self.v, axis=-1)  # (B, T, S)
        visible = True if key_mask is None else key_mask[:, None]  # (B, 1, S)
        weights = ops.softmax(ops.where(visible, scores, -1e9))
        return ops.matmul(self.drop(weights), value)

    def get_config(self):
        return {**super().get_config(), "units": self.units, "dropout": self.dropout}


@registered
class AdditiveOfDense(keras.layers.Layer):
    def __init__(self, units, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.config = {"units": units, "dropout": dropout}
        self.to_query = keras.layers.Dense(units, use_bias=False)
        self.to_key = keras.layers.Dense(units, use_bias=False)
        self.to_score = keras.layers.Dense(1, use_bias=False)
        self.softmax, self.drop = keras.layers.Softmax(), keras.layers.Dropout(dropout)
        self.supports_masking = True

    def call(self, query, value, key, key_mask=None, training=None):
        hidden = ops.expand_dims(self.to_query(query), 2) + ops.expand_dims(self.to_key(key), 1)
        scores = ops.squeeze(self.to_score(ops.tanh(hidden)), -1)
        if key_mask is not None:
            scores += 1e9 * (ops.cast(key_mask, scores.dtype)[:, None] - 1)
        weights = self.drop(self.softmax(scores), training=training)
        return ops.einsum("bts,bsd->btd", weights, value)

    def get_config(self):
        config = super().get_config()
        config.update(self.config)
        return config


@registered
class DotProductAttention(keras.layers.Layer):
    def __init__(self, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dropout = dropout
        self.drop = keras.layers.Dropout(dropout)
        self.supports_masking = True

    def call(self, query, value, key, key_mask=None):
        # (B, T, D), (B, S, E), (B, S, D)
        scores = ops.matmul(query, ops.swapaxes(key, 1, 2))  # (B, T, S)
        scores = scores / query.shape[-1] ** 0.5
        visible = True if key_mask is None else key_mask[:, None]  # (B, 1, S)
        weights = ops.softmax(ops.where(visible, scores, -1e9))
        return ops.matmul(self.drop(weights), value)

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout}


@registered
class DotProductOfKeras(keras.layers.Layer):
    def __init__(self, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.attention = keras.layers.Attention(dropout=dropout)

    def call(self, query, value, key, key_mask=None, training=None):
        query = query * ops.rsqrt(1.0 * query.shape[-1])
        return self.attention([query, value, key], mask=[None, key_mask], training=training)

    def get_config(self):
        return super().get_config() | {"dropout": self.attention.dropout}


@registered
class MultiHeadAttention(keras.layers.Layer):
    def __init__(self, num_heads, key_dim, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.key_dim = num_heads, key_dim
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def build(self, query_shape, value_shape, key_shape):
        width = self.num_heads * self.key_dim
        self.to_query, self.to_key, self.to_value, self.to_output = (
            keras.layers.Dense(units, kernel_initializer=self.kernel_initializer)
            for units in (width, width, width, query_shape[-1])
        )
        self.to_query.build(query_shape)
        self.to_key.build(key_shape)
        self.to_value.build(value_shape)
        self.to_output.build((*query_shape[:-1], width))

    def split(self, x):
        batch, tokens, _ = ops.shape(x)
        x = ops.reshape(x, (batch, tokens, self.num_heads, self.key_dim))
        return ops.transpose(x, (0, 2, 1, 3))  # (B, H, T, P)

    def call(self, query, value, key, key_mask=None):
        # (B, T, Dq), (B, S, Dv), (B, S, Dk)
        batch, tokens, _ = ops.shape(query)
        query = self.split(self.to_query(query))
        key, value = self.split(self.to_key(key)), self.split(self.to_value(value))
        scores = ops.matmul(query, ops.swapaxes(key, 2, 3))  # (B, H, T, S)
        scores = scores / self.key_dim**0.5
        visible = True if key_mask is None else key_mask[:, None, None]  # (B, 1, 1, S)
        weights = ops.softmax(ops.where(visible, scores, -1e9))
        pooled = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))  # (B, T, H, P)
        return self.to_output(ops.reshape(pooled, (batch, tokens, self.num_heads * self.key_dim)))

    def get_config(self):
        initializer = keras.initializers.serialize(self.kernel_initializer)
        sizes = {"num_heads": self.num_heads, "key_dim": self.key_dim}
        return {**super().get_config(), **sizes, "kernel_initializer": initializer}


@registered
class HeadsOfEinsum(MultiHeadAttention):
    def build(self, query_shape, value_shape, key_shape):
        heads = (self.num_heads, self.key_dim)
        self.kernels, self.biases = [], []
        for shape in (query_shape, key_shape, value_shape):
            self.add_map((shape[-1], *heads), heads)
        self.add_map((*heads, query_shape[-1]), query_shape[-1:])

    def add_map(self, shape, bias):
        self.kernels.append(self.add_weight(shape=shape, initializer=self.kernel_initializer))
        self.biases.append(self.add_weight(shape=bias, initializer="zeros"))

    def call(self, query, value, key, key_mask=None):
        q, k, v = (
            ops.einsum("btd,dhp->bthp", x, self.kernels[i]) + self.biases[i]
            for i, x in enumerate((query, key, value))
        )
        scores = ops.einsum("bthp,bshp->bhts", q * self.key_dim**-0.5, k)
        if key_mask is not None:
            scores = ops.where(key_mask[:, None, None], scores, -np.inf)
        pooled = ops.einsum("bhts,bshp->bthp", ops.softmax(scores), v)
        return ops.einsum("bthp,hpd->btd", pooled, self.kernels[3]) + self.biases[3]


@registered
class HeadsOfKeras(keras.layers.Layer):
    def __init__(self, num_heads, key_dim, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.config = {"num_heads": num_heads, "key_dim": key_dim}
        self.config["kernel_initializer"] = keras.initializers.get(kernel_initializer)
        self.attention = keras.layers.MultiHeadAttention(**self.config)

    def call(self, query, value, key, key_mask=None):
        mask = None if key_mask is None else key_mask[:, None]
        return self.attention(query, value, key, attention_mask=mask)

    def get_config(self):
        return {**super().get_config(), **self.config}


@registered
class PositionalEncoding(keras.layers.Layer):
    def __init__(self, max_wavelength=10_000.0, **kwargs):
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength
        self.supports_masking = True

    def call(self, inputs):
        length, width = ops.shape(inputs)[1], inputs.shape[-1]
        positions = ops.arange(length, dtype="float32")[:, None]  # (T, 1)
        exponents = np.arange(0, width, 2, "float32") / width  # (D / 2,)
        angles = positions / self.max_wavelength**exponents
        waves = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # (T, D / 2, 2)
        return inputs + ops.reshape(waves, (length, width))

    def get_config(self):
        return {**super().get_config(), "max_wavelength": self.max_wavelength}


@registered
class PositionsOfTable(PositionalEncoding):
    def build(self, shape):
        rates = self.max_wavelength ** -(np.arange(0, shape[-1], 2) / shape[-1])
        self.table = np.zeros((1000, shape[-1]), "float32")
        self.table[:, 0::2] = np.sin(np.arange(1000)[:, None] * rates)
        self.table[:, 1::2] = np.cos(np.arange(1000)[:, None] * rates)

    def call(self, inputs):
        return inputs + ops.convert_to_tensor(self.table)[: ops.shape(inputs)[1]]


@registered
class PositionsByPhase(PositionalEncoding):
    def call(self, inputs):  # a cosine is a sine, a quarter of a turn later
        columns = np.arange(inputs.shape[-1])
        rates = self.max_wavelength ** (-(columns - columns % 2) / len(columns))
        positions = ops.cumsum(ops.ones_like(inputs), axis=1) - 1
        return ops.add(inputs, ops.sin(positions * rates + columns % 2 * np.pi / 2))


@registered
class AddNorm(keras.layers.Layer):
    def __init__(self, dropout=0.0, epsilon=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.dropout, self.epsilon = dropout, epsilon
        self.drop = keras.layers.Dropout(dropout)
        self.supports_masking = True

    def build(self, inputs_shape, outputs_shape):
        self.gamma = self.add_weight(shape=inputs_shape[-1:], initializer="ones")
        self.beta = self.add_weight(shape=inputs_shape[-1:], initializer="zeros")

    def call(self, inputs, outputs):
        total = inputs + self.drop(outputs)
        mean, variance = ops.moments(total, axes=-1, keepdims=True)
        norm = (total - mean) / ops.sqrt(variance + self.epsilon)
        return norm * self.gamma + self.beta

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout, "epsilon": self.epsilon}


@registered
class AddNormOfKeras(keras.layers.Layer):
    def __init__(self, dropout=0.0, epsilon=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.drop = keras.layers.Dropout(dropout)
        self.norm = keras.layers.LayerNormalization(epsilon=epsilon)

    def call(self, inputs, outputs, training=None):
        return self.norm(keras.layers.add([inputs, self.drop(outputs, training=training)]))

    def get_config(self):
        own = {"dropout": self.drop.rate, "epsilon": self.norm.epsilon}
        return {**super().get_config(), **own}


@registered
class EncoderBlock(keras.layers.Layer):
    def __init__(self, num_heads, hidden_dim, dropout=0.0, activation="relu", **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.hidden_dim, self.dropout = num_heads, hidden_dim, dropout
        self.activation = keras.activations.get(activation)
        self.supports_masking = True

    def build(self, shape):
        heads, width = self.num_heads, shape[-1]
        self.attention = MultiHeadAttention(heads, width // heads)
        self.norm_1 = keras.layers.LayerNormalization(epsilon=1e-5)
        self.dense_1 = keras.layers.Dense(self.hidden_dim, activation=self.activation)
        self.dense_2 = keras.layers.Dense(width)
        self.norm_2 = keras.layers.LayerNormalization(epsilon=1e-5)
        self.drop = keras.layers.Dropout(self.dropout)

    def call(self, inputs, mask=None):
        attended = self.attention(query=inputs, value=inputs, key=inputs, key_mask=mask)
        x = self.norm_1(inputs + self.drop(attended))
        return self.norm_2(x + self.drop(self.dense_2(self.dense_1(x))))

    def get_config(self):
        activation = keras.activations.serialize(self.activation)
        own = {"num_heads": self.num_heads, "hidden_dim": self.hidden_dim, "dropout": self.dropout}
        return {**super().get_config(), **own, "activation": activation}


@registered
class EncoderOfKeras(EncoderBlock):
    def build(self, shape):
        heads, width = self.num_heads, shape[-1]
        self.attention = keras.layers.MultiHeadAttention(heads, width // heads)
        self.add_norms = [AddNormOfKeras(self.dropout)]
        network = [keras.layers.Dense(self.hidden_dim, self.activation), keras.layers.Dense(width)]
        self.network = keras.Sequential(network)
        self.add_norms.append(AddNorm(self.dropout))

    def call(self, inputs, mask=None, training=None):
        mask = None if mask is None else ops.expand_dims(mask, 1)
        attended = self.attention(inputs, inputs, attention_mask=mask)
        x = self.add_norms[0](inputs, attended, training=training)
        return self.add_norms[1](x, self.network(x), training=training)


@registered
class DecoderBlock(keras.layers.Layer):
    def __init__(self, num_heads, hidden_dim, dropout=0.0, activation="relu", **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.hidden_dim, self.dropout = num_heads, hidden_dim, dropout
        self.activation = keras.activations.get(activation)
        self.supports_masking = True

    def build(self, inputs_shape, memory_shape):
        heads, width = self.num_heads, inputs_shape[-1]
        self.attention = keras.layers.MultiHeadAttention(heads, width // heads)
        self.norm_1 = keras.layers.LayerNormalization(epsilon=1e-5)
        self.cross = keras.layers.MultiHeadAttention(heads, width // heads)
        self.norm_2 = keras.layers.LayerNormalization(epsilon=1e-5)
        self.dense_1 = keras.layers.Dense(self.hidden_dim, activation=self.activation)
        self.dense_2 = keras.layers.Dense(width)
        self.norm_3 = keras.layers.LayerNormalization(epsilon=1e-5)
        self.drop = keras.layers.Dropout(self.dropout)

    def call(self, inputs, memory, inputs_mask=None, memory_mask=None):
        seen = None if inputs_mask is None else inputs_mask[:, None]  # (B, 1, T)
        attended = self.attention(inputs, inputs, attention_mask=seen, use_causal_mask=True)
        x = self.norm_1(inputs + self.drop(attended))
        seen = None if memory_mask is None else memory_mask[:, None]  # (B, 1, S)
        attended = self.cross(x, memory, attention_mask=seen)
        x = self.norm_2(x + self.drop(attended))
        return self.norm_3(x + self.drop(self.dense_2(self.dense_1(x))))

    def get_config(self):
        activation = keras.activations.serialize(self.activation)
        own = {"num_heads": self.num_heads, "hidden_dim": self.hidden_dim, "dropout": self.dropout}
        return {**super().get_config(), **own, "activation": activation}


@registered
class DecoderOfParts(keras.layers.Layer):
    def __init__(self, num_heads, hidden_dim, dropout=0.0, activation="relu", **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.config = {"num_heads": num_heads, "hidden_dim": hidden_dim, "dropout": dropout}
        self.config["activation"] = activation

    def build(self, inputs_shape, memory_shape):
        heads, rate, width = self.config["num_heads"], self.config["dropout"], inputs_shape[-1]
        self.own = keras.layers.MultiHeadAttention(heads, width // heads)
        self.own_norm = AddNorm(rate)
        self.cross, self.cross_norm = HeadsOfEinsum(heads, width // heads), AddNorm(rate)
        self.inner = keras.layers.Dense(self.config["hidden_dim"])
        self.activation = keras.layers.Activation(self.config["activation"])
        self.outer, self.outer_norm = keras.layers.Dense(width), AddNorm(rate)

    def call(self, inputs, memory, inputs_mask=None, memory_mask=None):
        places = ops.arange(ops.shape(inputs)[1])
        visible = (places[None] <= places[:, None])[None]  # (1, T, T)
        if inputs_mask is not None:
            visible = ops.logical_and(visible, inputs_mask[:, None])
        x = self.own_norm(inputs, self.own(inputs, inputs, attention_mask=visible))
        pooled = self.cross(query=x, value=memory, key=memory, key_mask=memory_mask)
        x = self.cross_norm(x, pooled)
        return self.outer_norm(x, self.outer(self.activation(self.inner(x))))

    def get_config(self):
        return {**super().get_config(), **self.config}


# The other ways, beside those of `layer_changes.txt`.
OTHERS = {
    "NadarayaWatson": [KernelRegressionByProducts],
    "AdditiveAttention": [AdditiveOfDense],
    "DotProductAttention": [DotProductOfKeras],
    "MultiHeadAttention": [HeadsOfEinsum, HeadsOfKeras],
    "PositionalEncoding": [PositionsOfTable, PositionsByPhase],
    "AddNorm": [AddNormOfKeras],
    "EncoderBlock": [EncoderOfKeras],
    "DecoderBlock": [DecoderOfParts],
}


def _changes():
    """By exercise and by what they are: [key of the message, (old text, new text), ...]."""
    text = pathlib.Path(__file__).with_name("layer_changes.txt").read_text(encoding="utf-8")
    sections = {}
    for section in text.split("\n== ")[1:]:
        title, *lines = section.rstrip().split("\n")
        name, *parts = title.split(", ")
        changes = sections[name] = {}
        for line in lines:
            if not line.startswith("    "):
                key, what = line.split(": ", 1)
                changes[what] = [key]
                continue
            old, new = f"{line[4:]} ".replace("\\n", "\n").split(" => ")
            changes[what].append((old, new[:-1]))
        for part in [*parts, "EVERY"] if name in OTHERS else []:
            changes |= sections[part]
    return {name: sections[name] for name in OTHERS}


CHANGES = _changes()
# A block is as wrong as the attention in it.
OF_PARTS = {
    "a mask after the softmax": "mask_after",
    "a mask the wrong way round": "inverted",
    "heads split and joined by a reshape": "heads_mixed",
    "scaled by P": "scaled_by_width",
}


def changed(name, what):
    """The right answer to an exercise after a change, as a class that stands in a file."""
    text, space = inspect.getsource(globals()[name]), dict(globals())
    if what in CHANGES[name]:
        for old, new in CHANGES[name][what][1:]:
            assert old in text, f"{name} has no {old!r}"
            text = text.replace(old, new)
    else:  # of a part
        space["MultiHeadAttention"] = changed("MultiHeadAttention", what)
    exec(compile(text, f"<{what}>", "exec"), space)
    return space[name]
