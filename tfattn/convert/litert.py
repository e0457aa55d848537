"""Export of a `Transformer` to one LiteRT file that decodes, with an encoder and a step."""

import os
import tempfile
from typing import Any

import keras

from tfattn import _checks
from tfattn._files import replacing
from tfattn.convert import steps
from tfattn.core.engine import scope
from tfattn.models.transformer import Transformer


def to_litert(model: Transformer, path: str | os.PathLike[str]) -> None:
    """Writes a LiteRT (TFLite) file with two signatures, which decode with caches.

        encode:  source `(B, S)` -> keys, values, memory_keys, memory_values, memory_mask
        step:    tokens `(B, T)` and all of these -> logits `(B, V)`, keys, values

    Ids are int32; batch size and lengths are arbitrary: the interpreter resizes its tensors to each
    input. `tokens` are the begin token and the target so far, `logits` belong to the next token.
    Keys and values of the target are `(N, B, G, T, P)` before step T, for N layers and G key heads:
    the last position is room for that step, since LiteRT has no empty tensors, and each step
    returns one more. The memory is constant. A beam search gathers rows of keys and values, and
    repeats the memory.

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
        >>> import os, tempfile
        >>> model = Transformer(7, num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> model.build_for_any()
        >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
        ...     tfattn.convert.to_litert(model, os.path.join(folder, "model.tflite"))
        ...     os.listdir(folder)
        ['model.tflite']
    """
    who = "to_litert"
    steps.check(who, model)
    path = _checks.path(who, "path", path)
    if not path.endswith(".tflite"):
        _checks.fail(who, "path", 'end with ".tflite"', path)
    with replacing(path) as unfinished:
        unfinished.write_bytes(_converted(model))


def _converted(model: Transformer) -> bytes:
    import tensorflow as tf

    source, inputs = steps.signature(model)
    encoder, step = steps.Encoder(model, room=1), steps.Step(model)

    def encode(source: Any) -> dict[str, Any]:
        return dict(zip(steps.STATE, encoder(source), strict=True))

    def take_step(inputs: Any) -> dict[str, Any]:
        return dict(zip(steps.OUTPUTS, step(inputs), strict=True))

    with tempfile.TemporaryDirectory() as folder:
        archive = keras.export.ExportArchive()
        archive.track(model)
        with scope.export("litert"):
            archive.add_endpoint("encode", encode, [source])
            archive.add_endpoint("step", take_step, [inputs])
            archive.write_out(folder, verbose=False)
        names = ["encode", "step"]
        return tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=names).convert()
