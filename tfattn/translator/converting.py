"""A run from a published translator, and a run's model in the formats of other programs."""

import argparse
import contextlib
import os
from pathlib import Path

from tfattn import convert
from tfattn.convert import folders
from tfattn.convert.marian_folder import published_languages
from tfattn.translator import scoring
from tfattn.translator.arguments import EXPORTS, LANGUAGES, WrongName
from tfattn.translator.folder import Folder


def import_folder(options: argparse.Namespace) -> None:
    """Writes the folder's model and vocabularies to a new run, and prints its path."""
    folder = Folder(options.out)
    folder.lock()
    # An import that failed has left no model, and no fingerprint of sentences to learn from.
    if folder.model.exists() or "sentences" in folder.read_record():
        raise ValueError(
            f"{folder.path} already contains a run. Use --out to choose another folder."
        )
    names = [path.name for path in options.folder.iterdir()]
    if "config.json" not in names:
        raise WrongName("FOLDER", f"file {options.folder / 'config.json'}", names)
    model, *vocabularies = convert.load_marian(options.folder)
    search = convert.marian_search(options.folder)
    folder.lock(new=True)
    folder.save_vocabularies(vocabularies)
    arguments = ("num_beams", "length_penalty", "early_stopping")
    published = {name: getattr(search, name) for name in arguments if hasattr(search, name)}
    if search.rules:
        published["first_token"] = int(search.rules[0].tokens[0])
    languages = options.languages or published_languages(options.folder) or LANGUAGES
    folder.add_to_record(settings={"languages": list(languages)}, search=published)
    folder.save_model(model)
    print(f"model: {folder.path}")


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
