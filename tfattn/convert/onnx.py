"""A `Transformer` as two ONNX files, an encoder and a step, and text's vocabularies beside them."""

import os
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks, _optional
from tfattn.convert import folders, weights
from tfattn.core.engine import scope
from tfattn.models.transformer import Transformer

__all__ = ["to_onnx"]

# The step's inputs after the tokens, and the encoder's outputs, in this order.
STATE = ("keys", "values", "memory_keys", "memory_values", "memory_mask")


def to_onnx(model: Transformer, vocabularies: Sequence[Any], folder: str | os.PathLike) -> None:
    """Writes `encoder.onnx` and `step.onnx`, which decode with caches, and the vocabularies.

        encoder:  source `(B, S)` -> keys, values, memory_keys, memory_values, memory_mask
        step:     tokens `(B, T)` and all of these -> logits `(B, V)`, keys, values

    Ids are int32, batch and lengths are any. `tokens` are those of the target so far, with begin in
    front. Logits are of the token after them. Keys and values of the target are `(N, B, G, T, P)`
    after T steps, for N layers and G key heads: empty from the encoder, and one position longer
    from each step. Those of the memory stay as they are. Whoever drives beams takes rows of keys
    and values, and repeats those of the memory.

    A `Transformer` goes that computes in float32 and keeps its keys as they were turned, with the
    layers that go into ONNX files at all.

    Args:
        model: a built `Transformer`.
        vocabularies: source and target; the folder has them as `source.vocabulary` and
            `target.vocabulary`, which `tfattn.data.load_vocabulary` reads.
        folder: a new one, or one that is empty.
    Raises:
        ValueError: another class; a model that is not built, or does not compute in float32;
            a scaling of rotary positions that turns all keys anew, such as `scalings.dynamic`;
            vocabularies of other sizes; a folder with files in it.
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
    _check_dtype(who, model)
    _check_caches(who, model)
    folders.check_vocabularies(who, model, vocabularies)
    folder = folders.new(who, folder)
    _optional.find("tf2onnx", "export", who)
    block = model.decoder.blocks[0]
    attention = block.self_attention
    layers, groups = model.num_layers, attention.num_key_value_heads
    heads = (layers, None, groups, None)

    def spec(name, shape, dtype=model.compute_dtype):
        return keras.InputSpec(dtype=dtype, shape=shape, name=name)

    ids = spec("source", (None, None), "int32")
    widths = (attention.key_dim, attention.value_dim) * 2
    state = [spec(name, (*heads, width)) for name, width in zip(STATE[:-1], widths, strict=True)]
    state.append(spec("memory_mask", (None, None), "bool"))
    inputs = [spec("tokens", (None, None), "int32"), *state]
    with folders.whole(folder) as unfinished:
        _export(_Encoder(model), ids, os.path.join(unfinished, "encoder.onnx"))
        _export(_Step(model), inputs, os.path.join(unfinished, "step.onnx"))
        folders.save_vocabularies(vocabularies, unfinished)


def _check_dtype(who: str, model: Transformer) -> None:
    """Raises for float16 and its like, whose operations ONNX Runtime has in part alone."""
    if model.compute_dtype != "float32":
        expected = 'compute in float32: hand its weights to one that is made with dtype="float32"'
        _checks.fail(who, "model", expected, model.dtype_policy.name)


def _check_caches(who: str, model: Transformer) -> None:
    """Raises where keys have to be turned anew: a step gets those of all before it as they were."""
    for block in model.decoder.blocks:
        positions = getattr(block.self_attention, "positions", None)
        limited = getattr(positions, "max_cache_length", None) is not None
        instead = "keys in a cache stay as they were turned there, however long it gets"
        weights.refuse(who, {"scaling": (limited, instead)})


def _export(model: keras.Model, inputs: Any, path: str) -> None:
    with scope.of_export("onnx"):
        model.export(path, format="onnx", verbose=False, input_signature=[inputs])


class _Encoder(keras.Model):
    """Sources to the state of a step."""

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
    """The model's step, with caches that grow."""

    def __init__(self, model: Transformer):
        super().__init__(name="step", dtype=model.dtype_policy)
        self.model, self.built = model, True

    def call(self, inputs: Any) -> tuple[Any, Any, Any]:
        tokens, keys, values, memory_keys, memory_values, memory_mask = inputs
        place = [[0, 0], [0, 0], [0, 0], [0, 1], [0, 0]]  # of the new position
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
