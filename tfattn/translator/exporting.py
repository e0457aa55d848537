"""Export of a run's model to the formats of other programs."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import keras

from tfattn import convert
from tfattn._files import replacing
from tfattn.convert import folders
from tfattn.models.seq2seq import BahdanauSeq2Seq
from tfattn.translator.arguments import EXPORTS
from tfattn.translator.corpus import Words
from tfattn.translator.folder import Folder


def export(options: argparse.Namespace) -> None:
    """Exports the model and prints the path."""
    folder = Folder(options.out)
    path = options.into or folder.path / EXPORTS[options.to]
    if path.exists():
        raise ValueError(f"{path} already exists. Use --into to choose another path.")
    model, words = folder.load_model()
    target = Path(os.path.realpath(path))  # a link's target may not exist yet
    target.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[options.to](model, words, target, options)
    print(f"{options.to}: {path}")


def _saved_model(model, words, path, options):
    with folders.atomic_folder(path) as unfinished:
        model.export(unfinished, verbose=False)


def _onnx(model, words, path, options):
    convert.to_onnx(model, words, path)


def _ctranslate2(model, words, path, options):
    convert.to_ctranslate2(model, words, path, quantization=options.quantization)


def _litert(model, words, path, options):
    if isinstance(model, BahdanauSeq2Seq):
        raise ValueError(
            "--to litert: a recurrent model needs a known batch and source length; "
            "docs/save-export-serve.md shows the export from Python"
        )
    with replacing(path) as unfinished:
        model.export(unfinished, format="litert", verbose=False)


WRITERS: dict[str, Callable[[keras.Model, list[Words], Path, argparse.Namespace], None]] = {
    "saved_model": _saved_model,
    "onnx": _onnx,
    "ctranslate2": _ctranslate2,
    "litert": _litert,
}
