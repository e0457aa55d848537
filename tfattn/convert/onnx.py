"""Export of a `Transformer` to two ONNX files, an encoder and a step, with its vocabularies."""

import os
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks, _optional
from tfattn.convert import folders, weights
from tfattn.core.engine import scope
from tfattn.models.transformer import Transformer

# The step's inputs after the tokens, and the encoder's outputs, in this order.
STATE = ("keys", "values", "memory_keys", "memory_values", "memory_mask")


def to_onnx(model: Transformer, vocabularies: Sequence[Any], folder: str | os.PathLike) -> None:
    """Writes `encoder.onnx` and `step.onnx`, which decode with caches, and the vocabularies.

        encoder:  source `(B, S)` -> keys, values, memory_keys, memory_values, memory_mask
        step:     tokens `(B, T)` and all of these -> logits `(B, V)`, keys, values

    Ids are int32; batch size and lengths are arbitrary. `tokens` are begin and the target tokens so
    far, `logits` belong to the next token. Keys and values of the target are `(N, B, G, T, P)`
    after T steps, for N layers and G key heads: empty from the encoder, and one position longer
    after each step. The memory is constant. A beam search gathers rows of keys and values, and
    repeats the memory.

    Supported: float32 Transformers whose cached keys do not change, with layers that ONNX supports.

    Args:
        model: a built `Transformer`.
        vocabularies: source and target, saved as `source.vocabulary` and `target.vocabulary` for
            `tfattn.data.load_vocabulary`.
        folder: path of a new or empty folder.
    Raises:
        ValueError: another class; a model that is not built, or does not compute in float32;
            a scaling of rotary positions that changes cached keys, such as `scalings.dynamic`;
            vocabularies of other sizes; a folder that is not empty.
        ImportError: tf2onnx is not installed.
    Example:
        >>> import os, tempfile
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> model = Transformer(len(words), num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> model.build_for_any()
        >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
        ...     tfattn.convert.to_onnx(model, [words, words], folder)
        ...     sorted(os.listdir(folder))
        ['encoder.onnx', 'source.vocabulary', 'step.onnx', 'target.vocabulary']
    """
    who = "to_onnx"
    if not isinstance(model, Transformer):
        _checks.fail(who, "model", "be a Transformer", model)
    weights.check_built(who, model, "model")
    if model.compute_dtype != "float32":  # ONNX Runtime supports narrower floats only in part
        expected = 'compute in float32: copy its weights to a model with dtype="float32"'
        _checks.fail(who, "model", expected, model.dtype_policy.name)
    _check_caches(who, model)
    folders.check_vocabularies(who, model, vocabularies)
    folder = folders.check_empty(who, folder)
    _optional.find("tf2onnx", "export", who)
    attention = model.decoder.blocks[0].self_attention
    heads = (model.num_layers, None, attention.num_key_value_heads, None)

    def spec(name, shape, dtype=model.compute_dtype):
        return keras.InputSpec(dtype=dtype, shape=shape, name=name)

    ids = spec("source", (None, None), "int32")
    widths = (attention.key_dim, attention.value_dim) * 2
    state = [spec(name, (*heads, width)) for name, width in zip(STATE[:-1], widths, strict=True)]
    state.append(spec("memory_mask", (None, None), "bool"))
    inputs = [spec("tokens", (None, None), "int32"), *state]
    with folders.atomic_folder(folder) as unfinished:
        _export(_Encoder(model), ids, os.path.join(unfinished, "encoder.onnx"))
        _export(_Step(model), inputs, os.path.join(unfinished, "step.onnx"))
        folders.save_vocabularies(vocabularies, unfinished)


def _check_caches(who: str, model: Transformer) -> None:
    """Raises if positions must rotate cached keys again: steps reuse them unchanged."""
    for block in model.decoder.blocks:
        positions = getattr(block.self_attention, "positions", None)
        limited = getattr(positions, "max_cache_length", None) is not None
        reason = "cached keys cannot change with the length in an ONNX file"
        weights.refuse(who, "scaling", limited, reason)


def _export(model: keras.Model, inputs: Any, path: str) -> None:
    with scope.of_export("onnx"):
        model.export(path, format="onnx", verbose=False, input_signature=[inputs])


class _Encoder(keras.Model):
    """From a source to the state of the first step."""

    def __init__(self, model: Transformer):
        super().__init__(name="encoder", dtype=model.dtype_policy)
        self.model, self.built = model, True

    def call(self, source: Any) -> tuple[Any, ...]:
        state = self.model.encode(source, max_length=1)
        caches = state["caches"]
        memory = [ops.stack([c[f"memory_{x}"] for c in caches]) for x in ("keys", "values")]
        empty = [ops.stack([c[x].tensor for c in caches])[:, :, :, :0] for x in ("keys", "values")]
        return (*empty, *memory, state["memory_mask"])


class _Step(keras.Model):
    """The model's step, with growing caches."""

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
