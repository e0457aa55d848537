"""Export of a run's model to the formats of other programs."""

import argparse
import contextlib
import os
from pathlib import Path

from tfattn import convert
from tfattn.convert import folders
from tfattn.translator import scoring
from tfattn.translator.arguments import EXPORTS
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
    kind = {"quantization": options.quantization} if options.quantization else {}
    if options.to == "onnx":
        convert.to_onnx(model, vocabularies, target)
    elif options.to == "ctranslate2":
        convert.to_ctranslate2(model, vocabularies, target, **kind)
    elif options.to == "litert":
        convert.to_litert(model, target)
    elif options.to == "page":
        reads, writes = vocabularies
        convert.to_page(model, reads, writes, target, _examples(folder), **kind)
    else:
        with folders.atomic_folder(target) as unfinished:
            model.export(unfinished, verbose=False)
    print(f"{options.to}: {path}")


def _examples(folder: Folder) -> list[str]:
    """A few short sentences of the validation data; none if the files are missing."""
    wanted = argparse.Namespace(data=None, parts=["val"], sentences=100)
    with contextlib.suppress(OSError, ValueError):
        sentences = [source for source, _ in scoring.read_parts(folder, wanted)["val"]]
        return [sentence for sentence in sentences if len(sentence.split()) <= 10][:6]
    return []
