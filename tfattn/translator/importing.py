"""A run's folder from a published translator."""

import argparse

from tfattn import convert
from tfattn.convert.marian_folder import published_languages
from tfattn.translator.arguments import LANGUAGES, WrongName
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
