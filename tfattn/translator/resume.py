"""`run.json` holds the options of a run; a resumed run has the same, or names what differs."""

import argparse
import json
import os
import sys
from typing import Any

from tfattn.translator.arguments import COMMANDS, value
from tfattn.translator.corpus import Vocabulary
from tfattn.translator.folder import Folder
from tfattn.translator.presets import Preset


def settings(options: argparse.Namespace, preset: Preset) -> dict[str, Any]:
    """What a resumed run must share: recorded options, and what the preset says beyond them."""
    table = COMMANDS["train"].options
    found = {name[2:]: value(options, name) for name in table if table[name].recorded}
    found["init"] = options.init and os.path.realpath(options.init)
    recipe = {name: entry for name, entry in preset._asdict().items() if name not in found}
    found["preset settings"] = recipe
    return json.loads(json.dumps(found))  # with the types of the JSON file


def check(
    options: argparse.Namespace, preset: Preset, folder: Folder, done: int, sentences: str
) -> None:
    """Raises if a new run would overwrite a run or a model, or if a run of `done` epochs cannot be
    resumed with these options and these sentences, of which `sentences` is the fingerprint.
    """
    others = "Use --out to choose another folder."
    if done and not options.resume:
        raise ValueError(
            f"{folder.path} already contains a run ({done} epochs). Use --resume to continue it or "
            "--out to choose another folder."
        )
    if not done and folder.model.exists():  # a new run would overwrite its vocabularies
        backup = f", and no {folder.backup.name} to resume its training from"
        raise ValueError(
            f"{folder.path} already contains a model{backup if options.resume else ''}. {others}"
        )
    if not options.resume:
        return
    record = folder.read_record()
    if not record and not done:
        print(f"note: {folder.path} contains no run to resume; starting a new run", file=sys.stderr)
    if done and not folder.best_weights.exists():
        raise OSError(
            f"{folder.best_weights} is missing. A run cannot be completed without its best "
            f"weights. {others}"
        )
    earlier = record.get("settings", {})
    for name, now in settings(options, preset).items():
        if earlier.get(name, now) != now:
            raise ValueError(
                f"--{name}: the run in {folder.path} was started with {earlier[name]}, not with "
                f"{now}"
            )
    if record.get("sentences", sentences) != sentences:
        raise ValueError(f"the run in {folder.path} was started with different sentences")


def epochs(options: argparse.Namespace, preset: Preset, folder: Folder, done: int) -> int:
    """`--epochs`, or the number recorded for a resumed run, or the preset's."""
    earlier = folder.read_record().get("epochs") if options.resume else None
    found = options.epochs or earlier or preset.epochs
    if earlier and done < found != earlier:
        if preset.cooldown and min(earlier, found) - preset.cooldown < done:
            print(
                f"note: the run was planned for {earlier} epochs; with {found}, the learning rate "
                "will jump: the cooldown had already started",
                file=sys.stderr,
            )
    return found


def record(
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
        "settings": settings(options, preset),
        "sentences": sentences,
        "data": None if options.data is None else str(options.data.resolve()),
    }
    if options.init and not done:
        entries["search"] = Folder(options.init).read_record().get("search", {})
    if done < options.epochs or "epochs" not in folder.read_record():
        entries["epochs"] = options.epochs
    folder.add_to_record(**entries)
