"""Layers of Keras: their random inputs, and the answers in NumPy with the usual mistakes.

The weights of an answer are compared with those of the package's layer, in their order. Keras and
the package are imported when a layer is checked.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from exercises.arrays import floats, softmax
from exercises.exercise import Cases, LayerExercise, Setting

Array = np.ndarray
Mask = np.ndarray | None  # True = visible


def _layer(**parts: Any) -> Callable[[Callable[..., Array]], LayerExercise]:
    """Makes an exercise of the function that computes what the layer does."""

    def of(oracle: Callable[..., Array]) -> LayerExercise:
        return LayerExercise(name=parts["make"].__name__, oracle=oracle, **parts)

    return of


def _mask(rng: np.random.Generator, batch: int, tokens: int) -> Array:
    """True = visible: (B, S), with a hidden token in every row before the last, visible one."""
    mask = rng.random((batch, tokens)) < 0.7
    mask[:, [0, -1]], mask[:, -2] = True, False
    return mask


def _tokens(rng: np.random.Generator, shape: tuple[int, ...], mask: Array) -> Array:
    """Tokens (B, T, D), large where they are hidden, so that little of them is seen."""
    return floats(rng, *shape) * np.where(mask, 1, 20).astype("float32")[..., None]


# Attention.

_OF_MASKS = ("no_mask", "mask_after", "inverted")
_OF_ATTENTION = ("swapped", "over_queries", *_OF_MASKS)


def _attended(scores: Array, value: Array, mask: Any, mistake: str) -> Array:
    """Weighted means of the values: scores (..., T, S), mask broadcastable, True = visible."""
    mask = np.broadcast_to(True if mask is None or mistake == "no_mask" else mask, scores.shape)
    if mistake == "inverted":
        mask = ~mask
    if mistake == "mask_after":
        return (softmax(scores) * mask) @ value
    if mistake == "over_queries":
        scores, mask = np.swapaxes(scores, -1, -2), np.swapaxes(mask, -1, -2)
        return np.swapaxes(softmax(scores, mask), -1, -2) @ value
    return softmax(scores, mask) @ value


def _over_queries(key_mask: Mask) -> Mask:
    return None if key_mask is None else key_mask[:, None]  # (B, 1, S)


def _queries_and_keys(
    rng: np.random.Generator, configs: list[dict[str, Any]], same_width: bool
) -> Cases:
    """A case of one width without a mask, one with a mask, and one of several widths."""
    sizes = ((2, 3, 3, 4, 4, 4), (2, 5, 7, 4, 4, 4), (3, 2, 5, 6, 6 if same_width else 3, 5))
    for config, (batch, queries, keys, *widths) in zip(configs, sizes, strict=True):
        is_first = config is configs[0]
        mask = np.ones((batch, keys), bool) if is_first else _mask(rng, batch, keys)
        inputs = {
            "query": floats(rng, batch, queries, widths[0]),
            "value": _tokens(rng, (batch, keys, widths[2]), mask),
            "key": floats(rng, batch, keys, widths[1]),  # near: a kernel weighs far ones with 0
        }
        yield config, inputs if is_first else {**inputs, "key_mask": mask}


def _swapped(setting: Setting, key: Array, value: Array) -> tuple[Array, ...]:
    """Key and value, which one mistake exchanges, in float64."""
    key, value = key.astype("float64"), value.astype("float64")
    return (value, key) if setting.mistake == "swapped" else (key, value)


def NadarayaWatson(bandwidth: float = 1.0) -> Any:
    import tfattn

    return tfattn.NadarayaWatson(bandwidth=bandwidth, trainable_bandwidth=True)


def _points(rng: np.random.Generator) -> Cases:
    configs = [{"bandwidth": bandwidth} for bandwidth in (1.0, 0.7, 2.0)]
    return _queries_and_keys(rng, configs, same_width=True)


@_layer(
    tutorial="kernel_regression",
    draw=_points,
    make=NadarayaWatson,
    mistakes=("not_halved", "not_squared", "multiplied", "raw", *_OF_ATTENTION),
)
def _nadaraya_watson(
    setting: Setting, query: Array, value: Array, key: Array, key_mask: Mask = None
) -> Array:
    key, value = _swapped(setting, key, value)
    mistake, weight = setting.mistake, setting.weights[0]
    bandwidth = weight if mistake == "raw" else np.log1p(np.exp(weight))
    bandwidth = 1 / bandwidth if mistake == "multiplied" else bandwidth
    squares = ((query[:, :, None] - key[:, None]) ** 2).sum(axis=-1) / bandwidth**2  # (B, T, S)
    squares = np.sqrt(squares) if mistake == "not_squared" else squares
    scores = -squares if mistake == "not_halved" else -squares / 2
    return _attended(scores, value, _over_queries(key_mask), mistake)


def AdditiveAttention(units: int, dropout: float = 0.0) -> Any:
    import tfattn

    return tfattn.AdditiveAttention(units, dropout=dropout)


def _units(rng: np.random.Generator) -> Cases:
    configs = [{"units": units, "dropout": 0.0} for units in (7, 5, 7)]
    return _queries_and_keys(rng, configs, same_width=False)


@_layer(
    tutorial="scoring_functions",
    draw=_units,
    make=AdditiveAttention,
    mistakes=("no_tanh", "product", "tanh_of_score", *_OF_ATTENTION),
)
def _additive(
    setting: Setting, query: Array, value: Array, key: Array, key_mask: Mask = None
) -> Array:
    key, value = _swapped(setting, key, value)
    mistake, (w_query, w_key, w_score) = setting.mistake, setting.weights
    query, key = (query @ w_query)[:, :, None], (key @ w_key)[:, None]
    hidden = query * key if mistake == "product" else query + key  # (B, T, S, U)
    scores = (hidden if mistake in ("no_tanh", "tanh_of_score") else np.tanh(hidden)) @ w_score
    scores = np.tanh(scores) if mistake == "tanh_of_score" else scores
    return _attended(scores[..., 0], value, _over_queries(key_mask), mistake)


def DotProductAttention(dropout: float = 0.0) -> Any:
    import tfattn

    return tfattn.DotProductAttention(dropout=dropout)


def _dropouts(rng: np.random.Generator) -> Cases:
    return _queries_and_keys(rng, [{"dropout": 0.0} for _ in range(3)], same_width=True)


@_layer(
    tutorial="scoring_functions",
    draw=_dropouts,
    make=DotProductAttention,
    mistakes=("not_scaled", "scaled_by_width", *_OF_ATTENTION),
)
def _dot_product(
    setting: Setting, query: Array, value: Array, key: Array, key_mask: Mask = None
) -> Array:
    key, value = _swapped(setting, key, value)
    scores = query @ key.transpose(0, 2, 1) / _scale(setting.mistake, query.shape[-1])
    return _attended(scores, value, _over_queries(key_mask), setting.mistake)


def _scale(mistake: str, width: int, model: int = 1) -> float:
    wrong = {"not_scaled": 1.0, "scaled_by_width": width, "scaled_by_model": model**0.5}
    return wrong.get(mistake, width**0.5)


def MultiHeadAttention(
    num_heads: int, key_dim: int, kernel_initializer: Any = "glorot_uniform"
) -> Any:
    import tfattn

    return tfattn.MultiHeadAttention(num_heads, key_dim, kernel_initializer=kernel_initializer)


def _heads(rng: np.random.Generator) -> Cases:
    import keras

    initializers = "glorot_uniform", "zeros", keras.initializers.Constant(0.25)
    configs = [
        {"num_heads": heads, "key_dim": size, "kernel_initializer": initializer}
        for heads, size, initializer in zip((2, 2, 3), (3, 5, 2), initializers, strict=True)
    ]
    return _queries_and_keys(rng, configs, same_width=False)


_OF_SCALE = ("not_scaled", "scaled_by_width", "scaled_by_model")
_OF_HEADS = (*_OF_SCALE, "heads_mixed", "split_mixed", "merge_mixed")


@_layer(
    tutorial="multi_head",
    draw=_heads,
    make=MultiHeadAttention,
    mistakes=(*_OF_HEADS, "one_head", *_OF_ATTENTION),
)
def _multi_head(
    setting: Setting, query: Array, value: Array, key: Array, key_mask: Mask = None
) -> Array:
    key, value = _swapped(setting, key, value)
    mask = _over_queries(key_mask)
    return _of_heads(setting.weights, query, key, value, mask, setting.mistake)


def _of_heads(
    weights: list[Array], query: Array, key: Array, value: Array, mask: Mask, mistake: str
) -> Array:
    """Multi-head attention with the weights of query, key, value and output, mask (B, T, S)."""

    def split(x: Array, kernel: Array, bias: Array) -> Array:
        heads = np.einsum("btd,dhp->bthp", x, kernel) + bias  # (B, T, H, P)
        batch, tokens, number, size = heads.shape
        if mistake in ("heads_mixed", "split_mixed"):
            return heads.reshape(batch, number, tokens, size)
        if mistake == "one_head":
            return heads.reshape(batch, 1, tokens, number * size)
        return heads.transpose(0, 2, 1, 3)  # (B, H, T, P)

    *_, number, size = weights[0].shape
    query, key, value = (
        split(x, *weights[2 * i : 2 * i + 2]) for i, x in enumerate((query, key, value))
    )
    scores = query @ key.swapaxes(2, 3) / _scale(mistake, query.shape[-1], number * size)
    pooled = _attended(scores, value, None if mask is None else mask[:, None], mistake)
    batch, _, tokens, _ = pooled.shape
    if mistake not in ("heads_mixed", "merge_mixed"):
        pooled = pooled.transpose(0, 2, 1, 3)
    pooled = pooled.reshape(batch, tokens, number, size)
    return np.einsum("bthp,hpd->btd", pooled, weights[6]) + weights[7]


# Positions and norms.


def PositionalEncoding(max_wavelength: float = 10_000.0) -> Any:
    import tfattn

    return tfattn.SinusoidalPositionalEncoding(max_wavelength=max_wavelength)


def _lengths(rng: np.random.Generator) -> Cases:
    for shape, wavelength in (((2, 5, 4), 10_000.0), ((1, 40, 6), 10_000.0), ((2, 3, 8), 50.0)):
        yield {"max_wavelength": wavelength}, {"inputs": floats(rng, *shape)}


@_layer(
    tutorial="positions",
    draw=_lengths,
    make=PositionalEncoding,
    mistakes=("from_one", "halves", "cosine_first", "exponent", "not_added", "scaled"),
)
def _positions(setting: Setting, inputs: Array) -> Array:
    mistake, (_, length, width) = setting.mistake, inputs.shape
    pairs = np.arange(width // 2) * (1 if mistake == "exponent" else 2)
    positions = np.arange(length) + (mistake == "from_one")
    angles = positions[:, None] / setting.config["max_wavelength"] ** (pairs / width)
    waves = [np.sin(angles), np.cos(angles)][:: -1 if mistake == "cosine_first" else 1]
    encoding = np.stack(waves, axis=1 if mistake == "halves" else 2).reshape(length, width)
    factor = {"not_added": 0.0, "scaled": np.sqrt(width)}.get(mistake, 1.0)
    return factor * inputs.astype("float64") + encoding


def AddNorm(dropout: float = 0.0, epsilon: float = 1e-5) -> Any:
    import tfattn

    return tfattn.AddNorm(dropout=dropout, epsilon=epsilon)


def _branches(rng: np.random.Generator) -> Cases:
    for shape, factor, epsilon in (
        ((2, 3, 5), 1, 1e-5),
        ((2, 5, 5), 0.05, 1e-5),
        ((3, 2, 7), 0.3, 0.01),
    ):
        names = ("inputs", "outputs")
        tokens = {name: np.float32(factor) * (1 + floats(rng, *shape)) for name in names}
        yield {"dropout": 0.0, "epsilon": epsilon}, tokens


_OF_NORMS = ("no_residual", "norm_first", "over_tokens", "over_all", "other_epsilon", "no_gamma")


@_layer(tutorial="residuals_and_norms", draw=_branches, make=AddNorm, mistakes=_OF_NORMS)
def _add_norm(setting: Setting, inputs: Array, outputs: Array) -> Array:
    epsilon = setting.config["epsilon"]
    return _normalized(setting.weights, inputs, outputs, setting.mistake, epsilon)


def _normalized(
    weights: list[Array], x: Array, output: Array, mistake: str, epsilon: float = 1e-5
) -> Array:
    gamma, beta = (1.0, 0.0) if mistake == "no_gamma" else weights
    x, output = x.astype("float64"), output.astype("float64")
    total = output if mistake in ("no_residual", "norm_first") else x + output
    axis: Any = {"over_tokens": 1, "over_all": (1, 2)}.get(mistake, 2)
    epsilon = 1e-3 if mistake == "other_epsilon" else epsilon
    scale = np.sqrt(total.var(axis, keepdims=True) + epsilon)
    norm = (total - total.mean(axis, keepdims=True)) / scale * gamma + beta
    return x + norm if mistake == "norm_first" else norm


# Blocks.

_OF_MEMORY = ("target_unmasked", "memory_unmasked", "causal_memory", "no_memory")
_OF_BLOCKS = (*_OF_NORMS[:-1], *_OF_HEADS, "over_queries", *_OF_MASKS, "no_activation")


def _feed_forward(weights: list[Array], x: Array, setting: Setting) -> Array:
    activation = setting.config["activation"]
    hidden = x @ weights[0] + weights[1]
    if setting.mistake != "no_activation":
        hidden = np.maximum(hidden, 0) if activation == "relu" else np.tanh(hidden)
    return hidden @ weights[2] + weights[3]


def _block(kind: str, config: dict[str, Any]) -> Any:
    import tfattn

    activation, hidden_dim = config.pop("activation"), config.pop("hidden_dim")
    network = tfattn.PositionwiseFeedForward(hidden_dim, activation=activation)
    return getattr(tfattn, kind)(feed_forward=network, **config)


def _sizes(rng: np.random.Generator) -> Cases:
    """(Config, (B, T, D)) of each case; the last one has a function as its activation."""
    import keras

    activations = "relu", "relu", keras.activations.tanh
    shapes = (2, 3, 4), (2, 5, 6), (3, 7, 4)
    for activation, shape in zip(activations, shapes, strict=True):
        yield {"num_heads": 2, "hidden_dim": 9, "dropout": 0.0, "activation": activation}, shape


def EncoderBlock(
    num_heads: int, hidden_dim: int, dropout: float = 0.0, activation: Any = "relu"
) -> Any:
    return _block("TransformerEncoderBlock", locals())


def _texts(rng: np.random.Generator) -> Cases:
    for number, (config, shape) in enumerate(_sizes(rng)):
        mask = _mask(rng, *shape[:2])
        tokens = {"inputs": _tokens(rng, shape, mask | (number == 0))}
        yield config, {**tokens, "mask": mask} if number else tokens


@_layer(tutorial="transformer_translation", draw=_texts, make=EncoderBlock, mistakes=_OF_BLOCKS)
def _encoder(setting: Setting, inputs: Array, mask: Mask = None) -> Array:
    weights, mistake = setting.weights, setting.mistake
    x = inputs.astype("float64")
    attended = _of_heads(weights[:8], x, x, x, _over_queries(mask), mistake)
    x = _normalized(weights[8:10], x, attended, mistake)
    return _normalized(weights[14:], x, _feed_forward(weights[10:14], x, setting), mistake)


def DecoderBlock(
    num_heads: int, hidden_dim: int, dropout: float = 0.0, activation: Any = "relu"
) -> Any:
    return _block("TransformerDecoderBlock", locals())


def _pairs(rng: np.random.Generator) -> Cases:
    for number, (config, shape) in enumerate(_sizes(rng)):
        masks = _mask(rng, *shape[:2]), _mask(rng, shape[0], 5)
        width = shape[2] + 2 * (number == 2)
        inputs = {
            "inputs": _tokens(rng, shape, masks[0] | (number == 0)),
            "memory": _tokens(rng, (shape[0], 5, width), masks[1] | (number == 0)),
        }
        named = dict(zip(("inputs_mask", "memory_mask"), masks, strict=True))
        yield config, {**inputs, **named} if number else inputs


@_layer(
    tutorial="transformer_translation",
    draw=_pairs,
    make=DecoderBlock,
    mistakes=("look_ahead", *_OF_MEMORY, *_OF_BLOCKS),
)
def _decoder(
    setting: Setting,
    inputs: Array,
    memory: Array,
    inputs_mask: Mask = None,
    memory_mask: Mask = None,
) -> Array:
    weights, mistake = setting.weights, setting.mistake
    x, memory = inputs.astype("float64"), memory.astype("float64")
    causal = np.tri(x.shape[1], dtype=bool)[None]
    mask = np.ones_like(causal) if mistake == "look_ahead" else causal
    if inputs_mask is not None and mistake not in ("no_mask", "target_unmasked"):
        mask = mask & inputs_mask[:, None]
    within = "" if mistake == "no_mask" else mistake  # without padding, but causal
    x = _normalized(weights[8:10], x, _of_heads(weights[:8], x, x, x, mask, within), mistake)
    seen = None if mistake == "memory_unmasked" else _over_queries(memory_mask)
    if mistake == "causal_memory":
        causal = np.tri(x.shape[1], memory.shape[1], dtype=bool)[None]
        seen = causal if seen is None else causal & seen
    memory = x if mistake == "no_memory" else memory
    attended = _of_heads(weights[10:18], x, memory, memory, seen, mistake)
    x = _normalized(weights[18:20], x, attended, mistake)
    return _normalized(weights[24:], x, _feed_forward(weights[20:24], x, setting), mistake)
