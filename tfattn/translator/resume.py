"""Which settings a run was begun with, and whether it can be resumed with those of now."""

import argparse
import json
import sys

from tfattn.translator.corpus import Words
from tfattn.translator.folder import Folder, vocabulary_fingerprints
from tfattn.translator.presets import Preset

__all__ = ["check_run", "chosen_epochs", "record_run"]

# Who goes on with a run must ask for the same.
SETTINGS = (
    *("model", "preset", "seed", "languages"),
    *("pairs", "subwords", "tokens", "sentences"),
)


def chosen_epochs(options: argparse.Namespace, preset: Preset, folder: Folder, done: int) -> int:
    """`--epochs`; else those that the run which goes on was to have by this preset; else those of
    the preset.

    Args:
        done: epochs that lie behind the run.
    """
    record = folder.read_record() if options.resume else {}
    earlier = record.get("epochs")
    same = record.get("settings", {}).get("preset") == options.preset
    epochs = options.epochs or (same and earlier) or preset.epochs
    if earlier and preset.cooldown and done < epochs != earlier:
        if done > min(earlier, epochs) - preset.cooldown:
            print(
                f"note: the run was to end after {earlier} epochs; with {epochs} its rate, of "
                "whose way down a part lies behind it, makes a jump",
                file=sys.stderr,
            )
    return epochs


def check_run(
    options: argparse.Namespace, preset: Preset, folder: Folder, done: int, sentences: str
) -> None:
    """Refuses to write over a run or a model, and to go on with one that was made otherwise or of
    which a part is gone. Another preset may go on with a run whose epochs were the same by it.

    Args:
        done: epochs that lie behind the run.
        sentences: their `fingerprint`.
    """
    if not options.resume:
        if done:
            raise ValueError(
                f"{folder.path} holds a run of {done} epochs: --resume goes on with it, or scores "
                "it where --epochs is reached; --out names another folder"
            )
        if folder.model.exists():  # which would lose its vocabularies
            raise ValueError(f"{folder.path} holds a model: --out names another folder")
        return
    record = folder.read_record()
    if not record and not done:
        print(f"note: {folder.path} holds no run to go on with; a new one begins", file=sys.stderr)
    if done:
        folder.check_best_weights()
    earlier = record.get("settings", {})
    recipe, begun_with = _recipe(preset), record.get("stands_for", _recipe(preset))
    goes_on = (
        0 < done
        and earlier.get("preset", options.preset) != options.preset
        and (_behind(recipe, done) == _behind(begun_with, done))
    )
    for name, value in _settings(options).items():
        if name == "preset" and goes_on:
            continue
        if name in earlier and earlier[name] != value:
            raise ValueError(
                f"--{name}: the run in {folder.path} was begun with {earlier[name]}, and not with "
                f"{value}"
            )
    if record.get("sentences", sentences) != sentences:
        raise ValueError(
            f"the sentences are not those that the run in {folder.path} was begun with"
        )
    if begun_with != recipe and not goes_on:
        raise ValueError(
            f"--preset {options.preset}: the run in {folder.path} was begun when that stood for "
            f"something else, {begun_with}, and not {recipe}"
        )


def record_run(
    options: argparse.Namespace,
    preset: Preset,
    folder: Folder,
    done: int,
    sentences: str,
    words: list[Words],
) -> None:
    """Keeps what the run is made of. An `--epochs` that is reached already asks for a score, and
    changes nothing.
    """
    folder.take(new=True)
    if not done:
        folder.save_vocabularies(words)
    entries = {
        "settings": _settings(options),
        "stands_for": _recipe(preset),
        "sentences": sentences,
        "data": None if options.data is None else str(options.data.resolve()),
        "run": vocabulary_fingerprints(words),
    }
    if done < options.epochs or "epochs" not in folder.read_record():
        entries["epochs"] = options.epochs
    folder.add_to_record(**entries)


def _settings(options):
    return {name: getattr(options, name) for name in SETTINGS} | {
        "languages": list(options.languages)
    }


def _recipe(preset):
    """What a preset's name stands for, but for what options may say otherwise."""
    found = {
        name: value
        for name, value in preset._asdict().items()
        if name not in ("subwords", "tokens", "epochs")
    }
    return json.loads(json.dumps(found))  # as the file gives it back


def _behind(recipe, done):
    """The recipe, with the kind of each epoch that lies behind in place of its curriculum."""
    kinds = []
    for kind, end in recipe["curriculum"]:
        kinds += [kind] * (end - len(kinds))
    return {**recipe, "curriculum": [*kinds, *["plain"] * done][:done]}
