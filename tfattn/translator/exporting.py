"""Export of a run's model to the formats of other programs."""

import argparse
import contextlib
import os
from pathlib import Path

import keras

from tfattn import convert
from tfattn.convert import folders
from tfattn.translator import scoring
from tfattn.translator.arguments import EXPORTS
from tfattn.translator.corpus import Vocabulary
from tfattn.translator.folder import Folder


def export(options: argparse.Namespace) -> None:
    """Exports the model and prints the path."""
    folder = Folder(options.out)
    path = options.into or folder.path / EXPORTS[options.to]
    if path.exists():
        raise ValueError(f"{path} already exists. Use --into to choose another path.")
    model, vocabularies = folder.load_model()
    target = Path(os.path.realpath(path))  # a link's target may not exist yet
    target.parent.mkdir(parents=True, exist_ok=True)
    _write(model, vocabularies, target, options)
    print(f"{options.to}: {path}")


def _write(
    model: keras.Model, vocabularies: list[Vocabulary], path: Path, options: argparse.Namespace
) -> None:
    if options.to == "onnx":
        convert.to_onnx(model, vocabularies, path)
    elif options.to == "ctranslate2":
        convert.to_ctranslate2(model, vocabularies, path, quantization=options.quantization)
    elif options.to == "litert":
        convert.to_litert(model, path)
    elif options.to == "page":
        kind = {"quantization": options.quantization} if options.quantization else {}
        source, target = vocabularies
        examples = _examples(Folder(options.out))
        convert.to_page(model, source, target, path, examples, **kind)
    else:
        with folders.atomic_folder(path) as unfinished:
            model.export(unfinished, verbose=False)


def _examples(folder: Folder) -> list[str]:
    """A few short sentences of the validation data; none if the files are missing."""
    wanted = argparse.Namespace(data=None, parts=["val"], sentences=100)
    with contextlib.suppress(OSError, ValueError):
        sentences = [source for source, _ in scoring.read_parts(folder, wanted)["val"]]
        return [sentence for sentence in sentences if len(sentence.split()) <= 10][:6]
    return []
