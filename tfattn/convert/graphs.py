"""Export of a `Transformer` as graphs of its encoder and of one step, with caches as tensors."""

import os
import tempfile
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks, _optional
from tfattn._files import replacing
from tfattn.convert import folders, weights
from tfattn.core.engine import dispatch
from tfattn.models.transformer import Transformer

# The step's inputs after the tokens, and the encoder's outputs, in this order.
_STATE = ("keys", "values", "memory_keys", "memory_values", "memory_mask")


def to_onnx(
    model: Transformer, vocabularies: Sequence[Any], folder: str | os.PathLike[str]
) -> None:
    """Writes `encoder.onnx` and `step.onnx`, which decode with caches, and the vocabularies.

        encoder:  source `(B, S)` -> keys, values, memory_keys, memory_values, memory_mask
        step:     tokens `(B, T)` and all of these -> logits `(B, V)`, keys, values

    Ids are int32; batch size and lengths are arbitrary. `tokens` are the begin token and the target
    so far, `logits` belong to the next token. Keys and values of the target are `(N, B, G, T, P)`
    after T steps, for N layers and G key heads: empty from the encoder, and one position longer
    after each step. The memory is constant. A beam search gathers rows of keys and values, and
    repeats the memory.

    Args:
        model: a built `Transformer` that computes in float32, with layers that ONNX supports.
        vocabularies: source and target, saved as `source.vocabulary` and `target.vocabulary` for
            `tfattn.data.load_vocabulary`.
        folder: path of a new or empty folder.
    Raises:
        ValueError: another class; a model that is not built, or does not compute in float32;
            vocabularies of other sizes; a folder that is not empty; a backend other than
            TensorFlow.
        ImportError: tf2onnx is not installed.
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> model = Transformer(len(words), num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> model.build_for_any()
        >>> tfattn.convert.to_onnx(model, [words, words], "onnx")  # doctest: +SKIP
    """
    who = "to_onnx"
    _check(who, model)
    folder = folders.checked(who, folder, model, vocabularies)
    _optional.find("tf2onnx", "export", who)
    source, inputs = _signature(model)
    with folders.atomic_folder(folder) as unfinished:
        _export(_Encoder(model, room=0), source, os.path.join(unfinished, "encoder.onnx"))
        _export(_Step(model), inputs, os.path.join(unfinished, "step.onnx"))
        folders.save_vocabularies(vocabularies, unfinished)


def to_litert(model: Transformer, path: str | os.PathLike[str]) -> None:
    """Writes a LiteRT (TFLite) file with two signatures, which decode with caches.

        encode:  source `(B, S)` -> keys, values, memory_keys, memory_values, memory_mask
        step:    tokens `(B, T)` and all of these -> logits `(B, V)`, keys, values

    As `to_onnx`, except that keys and values are `(N, B, G, T, P)` before step T: the last position
    is room for that step, since LiteRT has no empty tensors. The interpreter resizes its tensors to
    each input.

    Supported: float32 Transformers with layers that LiteRT's built-in operations can compute.
    Weights stay float32.

    Args:
        model: a built `Transformer`.
        path: of the file, which ends with ".tflite"; an old file is replaced as a whole.
    Raises:
        ValueError: another class; a model that is not built, is quantized, or does not compute in
            float32; another file extension; a backend other than TensorFlow.
        FileNotFoundError: the folder of `path` does not exist.
    Example:
        >>> model = Transformer(7, num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> model.build_for_any()
        >>> tfattn.convert.to_litert(model, "model.tflite")  # doctest: +SKIP
    """
    who = "to_litert"
    _check(who, model)
    path = _checks.path(who, "path", path)
    if not path.endswith(".tflite"):
        _checks.fail(who, "path", 'end with ".tflite"', path)
    with replacing(path) as unfinished:
        unfinished.write_bytes(_converted(model))


def _check(who: str, model: Any) -> None:
    if not isinstance(model, Transformer):
        _checks.fail(who, "model", "be a Transformer", model)
    weights.check_built(who, "model", model)
    if model.compute_dtype != "float32":  # runtimes support narrower floats only in part
        expected = 'compute in float32: copy its weights to a model with dtype="float32"'
        _checks.fail(who, "model", expected, model.dtype_policy.name)
    if keras.backend.backend() != "tensorflow":
        expected = (
            "be on the TensorFlow backend: save it, and load it with KERAS_BACKEND="
            '"tensorflow" and load_model(path, compile=False)'
        )
        _checks.fail(who, "model", expected, keras.backend.backend())


def _export(model: keras.Model, inputs: Any, path: str) -> None:
    with dispatch.of_format("onnx"):
        model.export(path, format="onnx", verbose=False, input_signature=[inputs])


def _converted(model: Transformer) -> bytes:
    import tensorflow as tf

    source, inputs = _signature(model)
    encoder, step = _Encoder(model, room=1), _Step(model)

    def encode(source: Any) -> dict[str, Any]:
        return dict(zip(_STATE, encoder(source), strict=True))

    def take_step(inputs: Any) -> dict[str, Any]:
        return dict(zip(("logits", "keys", "values"), step(inputs), strict=True))

    with tempfile.TemporaryDirectory() as folder:
        archive = keras.export.ExportArchive()
        archive.track(model)
        with dispatch.of_format("litert"):
            archive.add_endpoint("encode", encode, [source])
            archive.add_endpoint("step", take_step, [inputs])
            archive.write_out(folder, verbose=False)
        names = ["encode", "step"]
        return tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=names).convert()


def _signature(model: Transformer) -> tuple[keras.InputSpec, list[keras.InputSpec]]:
    """The input of `_Encoder`, and the inputs of `_Step`, for any batch and lengths."""
    attention = model.decoder.blocks[0].self_attention
    heads = (model.num_layers, None, attention.num_key_value_heads, None)
    caches = [(*heads, attention.key_dim), (*heads, attention.value_dim)] * 2
    shapes = dict(zip(_STATE, [*caches, (None, None)], strict=True))
    dtypes = {"tokens": "int32", "memory_mask": "bool"}
    inputs = [
        keras.InputSpec(dtype=dtypes.get(name, "float32"), shape=shape, name=name)
        for name, shape in {"tokens": (None, None), **shapes}.items()
    ]
    return keras.InputSpec(dtype="int32", shape=(None, None), name="source"), inputs


class _Encoder(keras.Model):
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


class _Step(keras.Model):
    """The model's step, whose caches grow by a position."""

    def __init__(self, model: Transformer):
        super().__init__(name="step", dtype=model.dtype_policy)
        self.model, self.built = model, True

    def call(self, inputs: Any) -> tuple[Any, Any, Any]:
        tokens, keys, values, *memory, memory_mask = inputs
        place = [[0, 0], [0, 0], [0, 0], [0, 1], [0, 0]]  # for the new position
        tensors = (ops.pad(keys, place), ops.pad(values, place), *memory)
        caches = [
            {name: tensor[i] for name, tensor in zip(_STATE[:-1], tensors, strict=True)}
            for i in range(self.model.num_layers)
        ]
        position = ops.shape(tokens)[1] - 1
        x, caches = self.model.decoder.step(tokens, position, caches, memory_mask)
        grown = [ops.stack([c[name].tensor for c in caches]) for name in ("keys", "values")]
        return (self.model.logits(x[:, 0]), *grown)
