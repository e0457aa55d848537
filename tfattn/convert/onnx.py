"""Export of a `Transformer` to two ONNX files, an encoder and a step, with its vocabularies."""

import os
from collections.abc import Sequence
from typing import Any

import keras

from tfattn import _optional
from tfattn.convert import folders, steps
from tfattn.core.engine import scope
from tfattn.models.transformer import Transformer


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

    Supported: float32 Transformers with layers that ONNX supports.

    Args:
        model: a built `Transformer`.
        vocabularies: source and target, saved as `source.vocabulary` and `target.vocabulary` for
            `tfattn.data.load_vocabulary`.
        folder: path of a new or empty folder.
    Raises:
        ValueError: another class; a model that is not built, or does not compute in float32;
            vocabularies of other sizes; a folder that is not empty; a backend other than
            TensorFlow.
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
    steps.check(who, model)
    folders.check_vocabularies(who, model, vocabularies)
    folder = folders.check_empty(who, folder)
    _optional.find("tf2onnx", "export", who)
    source, inputs = steps.signature(model)
    with folders.atomic_folder(folder) as unfinished:
        _export(steps.Encoder(model, room=0), source, os.path.join(unfinished, "encoder.onnx"))
        _export(steps.Step(model), inputs, os.path.join(unfinished, "step.onnx"))
        folders.save_vocabularies(vocabularies, unfinished)


def _export(model: keras.Model, inputs: Any, path: str) -> None:
    with scope.export("onnx"):
        model.export(path, format="onnx", verbose=False, input_signature=[inputs])
