"""Export of a run's model to the formats of other programs."""

import argparse
import os
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
    _write(model, words, target, options)
    print(f"{options.to}: {path}")


def _write(model: keras.Model, words: list[Words], path: Path, options: argparse.Namespace) -> None:
    if options.to == "onnx":
        convert.to_onnx(model, words, path)
    elif options.to == "ctranslate2":
        convert.to_ctranslate2(model, words, path, quantization=options.quantization)
    elif options.to == "saved_model":
        with folders.atomic_folder(path) as unfinished:
            model.export(unfinished, verbose=False)
    elif isinstance(model, BahdanauSeq2Seq):
        raise ValueError(
            "--to litert: a recurrent model needs a known batch and source length; "
            "docs/save-export-serve.md shows the export from Python"
        )
    else:
        with replacing(path) as unfinished:
            model.export(unfinished, format="litert", verbose=False)
