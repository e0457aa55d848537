"""A run's folder from a published translator."""

import argparse

from tfattn import convert
from tfattn.convert.marian_folder import published_languages
from tfattn.translator.arguments import LANGUAGES, WrongName, listed
from tfattn.translator.folder import SEARCH, Folder


def import_folder(options: argparse.Namespace) -> None:
    """Writes the folder's model and vocabularies to a new run, and prints its path."""
    folder = Folder(options.out)
    folder.lock()
    # An import that failed has left no model and a record of these entries.
    if folder.model.exists() or not set(folder.read_record()) <= {"settings", "search"}:
        raise ValueError(
            f"{folder.path} already contains a run. Use --out to choose another folder."
        )
    names = [path.name for path in options.folder.iterdir()]
    if "config.json" not in names:
        others = f", but {listed(names)}" if names else ""
        raise WrongName(f"FOLDER: there is no file {options.folder / 'config.json'}{others}")
    model, *vocabularies = convert.load_marian(options.folder)
    search = convert.marian_search(options.folder)
    folder.lock(new=True)
    folder.save_vocabularies(vocabularies)
    published = {name: getattr(search, name) for name in SEARCH if hasattr(search, name)}
    if search.rules:
        published["first_token"] = int(search.rules[0].tokens[0])
    languages = options.languages or published_languages(options.folder) or LANGUAGES
    folder.add_to_record(settings={"languages": list(languages)}, search=published)
    folder.save_model(model, vocabularies)
    print(f"model: {folder.path}")
