"""Compares the settings of an earlier run with the current settings, before it is resumed."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tfattn.translator import curriculum
from tfattn.translator.corpus import Vocabulary
from tfattn.translator.folder import Folder, vocabulary_fingerprints
from tfattn.translator.presets import Preset

# A resumed run must have the same values of these settings.
SETTINGS = (
    *("model", "preset", "seed", "languages"),
    *("pairs", "subwords", "tokens", "sentences", "init", "symbols"),
)


def chosen_epochs(options: argparse.Namespace, preset: Preset, folder: Folder, done: int) -> int:
    """`--epochs`, or the number recorded for a resumed run with this preset, or the preset's.

    Args:
        done: completed epochs of the run.
    """
    record = folder.read_record() if options.resume else {}
    earlier = record.get("epochs")
    same = record.get("settings", {}).get("preset") == options.preset
    epochs = options.epochs or (same and earlier) or preset.epochs
    if earlier and done < epochs:
        if _cooled(preset, earlier, done) != _cooled(preset, epochs, done):
            print(
                f"note: the run was planned for {earlier} epochs; with {epochs}, the learning rate "
                "will jump: the cooldown had already started",
                file=sys.stderr,
            )
    return epochs


def check_run(
    options: argparse.Namespace, preset: Preset, folder: Folder, done: int, sentences: str
) -> None:
    """Raises if a new run would overwrite a run or a model, or if a resumed run is damaged or had
    other settings. Another preset may resume a run if the completed epochs are equal under both.

    Args:
        done: completed epochs of the run.
        sentences: `fingerprint` of the sentences.
    """
    if not options.resume:
        if done:
            raise ValueError(
                f"{folder.path} already contains a run ({done} epochs). Use --resume to continue "
                "it or --out to choose another folder."
            )
    if not done and folder.model.exists():  # a new run would overwrite its vocabularies
        backup = (
            f", and no {folder.backup.name} to resume its training from" if options.resume else ""
        )
        raise ValueError(
            f"{folder.path} already contains a model{backup}. Use --out to choose another folder."
        )
    if not options.resume:
        return
    record = folder.read_record()
    if not record and not done:
        print(f"note: {folder.path} contains no run to resume; starting a new run", file=sys.stderr)
    if done:
        folder.check_best_weights()
    earlier = record.get("settings", {})
    recipe, started_with = _recipe(preset), record.get("stands_for", _recipe(preset))
    continues = (
        0 < done
        and earlier.get("preset", options.preset) != options.preset
        and (_completed(recipe, done) == _completed(started_with, done))
    )
    for name, value in _settings(options).items():
        if name == "preset" and continues:
            continue
        if name in earlier and earlier[name] != value:
            raise ValueError(
                f"--{name}: the run in {folder.path} was started with {earlier[name]}, not with "
                f"{value}"
            )
    if record.get("sentences", sentences) != sentences:
        raise ValueError(f"the run in {folder.path} was started with different sentences")
    if started_with != recipe and not continues:
        raise ValueError(
            f"--preset {options.preset}: the run in {folder.path} was started with different "
            f"settings for this preset: {started_with}, not {recipe}"
        )


def record_run(
    options: argparse.Namespace,
    preset: Preset,
    folder: Folder,
    done: int,
    sentences: str,
    vocabularies: list[Vocabulary],
) -> None:
    """Records the settings of the run; `--epochs` only if epochs remain to be trained."""
    folder.lock(new=True)
    if not done:
        folder.save_vocabularies(vocabularies)
    entries = {
        "settings": _settings(options),
        "stands_for": _recipe(preset),
        "sentences": sentences,
        "data": None if options.data is None else str(options.data.resolve()),
        "run": vocabulary_fingerprints(vocabularies),
    }
    if options.init and not done:
        entries["search"] = Folder(Path(options.init)).read_record().get("search", {})
    if done < options.epochs or "epochs" not in folder.read_record():
        entries["epochs"] = options.epochs
    folder.add_to_record(**entries)


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in SETTINGS} | {
        "languages": list(options.languages),
        "init": options.init and os.path.realpath(options.init),
    }


def _recipe(preset: Preset) -> dict[str, Any]:
    """The preset's settings that no option overrides."""
    found = {
        name: value
        for name, value in preset._asdict().items()
        if name not in ("subwords", "tokens")
    }
    return json.loads(json.dumps(found))  # with the types of the JSON file


def _cooled(preset: Preset, epochs: int, done: int) -> list[range]:
    """The cooldowns, up to the epoch `done`, of a training run of `epochs` epochs."""
    found = curriculum.cooldowns(curriculum.training_phases(preset, epochs))
    return [range(each.start, min(each.stop, done)) for each in found if each.start < done]


def _completed(recipe: dict[str, Any], done: int) -> dict[str, Any]:
    """The recipe, with the settings of each of the `done` epochs in place of its phases."""
    found = []
    for kind, epochs, peak, cooldown in recipe.get("phases", ()):
        remaining = range(epochs, 0, -1)
        found += [[kind, peak, left if left <= cooldown else 0] for left in remaining]
    return {**recipe, "phases": found[:done]}
