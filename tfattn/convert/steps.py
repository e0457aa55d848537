"""The encoder and one step of a `Transformer`, with caches as tensors, for files with graphs."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn.convert import weights
from tfattn.models.transformer import Transformer

# The step's inputs after the tokens, and the encoder's outputs, in this order.
STATE = ("keys", "values", "memory_keys", "memory_values", "memory_mask")
OUTPUTS = ("logits", "keys", "values")  # of the step


def check(who: str, model: Any) -> None:
    """Raises unless `Encoder` and `Step` can be made of the model."""
    if not isinstance(model, Transformer):
        _checks.fail(who, "model", "be a Transformer", model)
    weights.check_built(who, model, "model")
    if model.compute_dtype != "float32":  # runtimes support narrower floats only in part
        expected = 'compute in float32: copy its weights to a model with dtype="float32"'
        _checks.fail(who, "model", expected, model.dtype_policy.name)
    if keras.backend.backend() != "tensorflow":
        expected = (
            "be on the TensorFlow backend: save it, and load it with KERAS_BACKEND="
            '"tensorflow" and load_model(path, compile=False)'
        )
        _checks.fail(who, "model", expected, keras.backend.backend())


def signature(model: Transformer) -> tuple[keras.InputSpec, list[keras.InputSpec]]:
    """The input of `Encoder`, and the inputs of `Step`, for any batch and lengths."""

    def spec(
        name: str, shape: tuple[Any, ...], dtype: str = model.compute_dtype
    ) -> keras.InputSpec:
        return keras.InputSpec(dtype=dtype, shape=shape, name=name)

    attention = model.decoder.blocks[0].self_attention
    heads = (model.num_layers, None, attention.num_key_value_heads, None)
    widths = (attention.key_dim, attention.value_dim) * 2
    state = [spec(name, (*heads, width)) for name, width in zip(STATE[:-1], widths, strict=True)]
    state.append(spec("memory_mask", (None, None), "bool"))
    return spec("source", (None, None), "int32"), [spec("tokens", (None, None), "int32"), *state]


class Encoder(keras.Model):
    """From a source to the state of the first step, whose caches have `room` positions, 0 or 1."""

    def __init__(self, model: Transformer, room: int):
        super().__init__(name="encoder", dtype=model.dtype_policy)
        self.model, self.room, self.built = model, room, True

    def call(self, source: Any) -> tuple[Any, ...]:
        state = self.model.encode(source, max_length=1)
        caches = state["caches"]
        memory = [ops.stack([c[f"memory_{x}"] for c in caches]) for x in ("keys", "values")]
        own = [ops.stack([c[x].tensor for c in caches]) for x in ("keys", "values")]
        empty = [each[:, :, :, : self.room] for each in own]
        return (*empty, *memory, state["memory_mask"])


class Step(keras.Model):
    """The model's step, whose caches grow by a position."""

    def __init__(self, model: Transformer):
        super().__init__(name="step", dtype=model.dtype_policy)
        self.model, self.built = model, True

    def call(self, inputs: Any) -> tuple[Any, Any, Any]:
        tokens, keys, values, memory_keys, memory_values, memory_mask = inputs
        place = [[0, 0], [0, 0], [0, 0], [0, 1], [0, 0]]  # for the new position
        keys, values = ops.pad(keys, place), ops.pad(values, place)
        caches = [
            {
                "keys": keys[i],
                "values": values[i],
                "memory_keys": memory_keys[i],
                "memory_values": memory_values[i],
            }
            for i in range(self.model.num_layers)
        ]
        position = ops.shape(tokens)[1] - 1
        x, caches = self.model.decoder.step(tokens, position, caches, memory_mask)
        grown = [ops.stack([c[name].tensor for c in caches]) for name in ("keys", "values")]
        return (self.model.logits(x[:, 0]), *grown)
