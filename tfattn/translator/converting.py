"""A run from a published translator, and a run's model in the formats of other programs."""

import argparse
import contextlib

from tfattn import convert
from tfattn.convert import folders
from tfattn.convert.marian_folder import published_languages
from tfattn.translator import scoring
from tfattn.translator.arguments import EXPORTS, LANGUAGES
from tfattn.translator.folder import Folder


def import_folder(options: argparse.Namespace) -> None:
    """Writes the folder's model and vocabularies to a new run, and prints its path."""
    folder = Folder(options.out)
    # An import that failed has left no model, and no fingerprint of sentences to learn from.
    if folder.model.exists() or "sentences" in folder.read_record():
        raise ValueError(
            f"{folder.path} already contains a run. Use --out to choose another folder."
        )
    model, source, target = convert.load_marian(options.folder)
    search = convert.marian_search(options.folder)
    folder.lock()
    folder.save_vocabularies((source, target))
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
    path = folder.path / EXPORTS[options.to]
    if path.exists():
        raise ValueError(f"{path} already exists. Move it, or delete it.")
    model, vocabularies = folder.load_model()
    kind = {"quantization": options.quantization} if options.quantization else {}
    if options.to == "onnx":
        convert.to_onnx(model, vocabularies, path)
    elif options.to == "ctranslate2":
        convert.to_ctranslate2(model, vocabularies, path, **kind)
    elif options.to == "litert":
        convert.to_litert(model, path)
    elif options.to == "page":
        reads, writes = vocabularies
        convert.to_page(model, reads, writes, path, _examples(folder), **kind)
    else:
        with folders.atomic_folder(path) as unfinished:
            model.export(unfinished, verbose=False)
    print(f"{options.to}: {path}")


def _examples(folder: Folder) -> list[str]:
    """A few short sentences of the validation data; none if the files are missing."""
    wanted = argparse.Namespace(data=None, parts=["val"], sentences=100)
    with contextlib.suppress(OSError, ValueError):
        sentences = [source for source, _ in scoring.read_parts(folder, wanted)["val"]]
        return [sentence for sentence in sentences if len(sentence.split()) <= 10][:6]
    return []
