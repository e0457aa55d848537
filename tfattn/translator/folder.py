"""The files of a run in `--out`."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import filelock
import keras

from tfattn import data, decoding
from tfattn._files import replacing
from tfattn.decoding.translate import check_parts
from tfattn.training.backup import UNREADABLE, lock
from tfattn.translator.corpus import Vocabulary

# The entries of a record that a command reads, with their types.
_ENTRIES: dict[str, Any] = {
    "data": str | None,
    "epochs": int,
    "model": list,
    "model_file": str,
    "search": dict,
    "sentences": str,
    "settings": dict,
}


class Folder:
    """Paths of a run's files, and `run.json`, the record of its settings and fingerprints."""

    def __init__(self, path: Path):
        self.path = path
        self.record = path / "run.json"
        self.backup = path / "backup.npz"
        self.best_weights = path / "best.weights.h5"
        self.epochs = path / "epochs.csv"
        self.tensorboard = path / "tensorboard"
        self.model = path / "model.keras"
        self.vocabulary_files = [path / "source.vocabulary", path / "target.vocabulary"]
        self._lock: filelock.BaseFileLock | None = None

    def lock(self, new: bool = False) -> None:
        """Locks the folder, created if `new`, against other runs until this process ends."""
        if self._lock is not None:
            return
        path = os.path.realpath(self.path)  # a link's target may not exist yet
        try:
            if new:
                os.makedirs(path)
            if os.path.isdir(path):
                self._lock = lock(self.backup)
            elif os.path.lexists(path):
                raise ValueError(f"{self.path} is not a folder. Use --out to choose another path.")
        except (FileExistsError, filelock.Timeout):
            raise ValueError(
                f"another training run writes to {self.path}. Wait for its end, or use --out to "
                "choose another folder."
            ) from None

    def read_record(self) -> dict[str, Any]:
        if not self.record.exists():
            return {}
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(self.record.read_text(encoding="utf-8"))
            if isinstance(found, dict) and all(
                isinstance(found[name], kind) for name, kind in _ENTRIES.items() if name in found
            ):
                return found
        raise ValueError(
            f"{self.record} cannot be read. Delete it to continue without checking the settings, "
            "or use --out to choose another folder."
        )

    def add_to_record(self, **entries: Any) -> None:
        record = {**self.read_record(), **entries}
        with replacing(self.record) as unfinished:
            unfinished.write_text(json.dumps(record, indent=1), encoding="utf-8")

    def save_vocabularies(self, vocabularies: Sequence[Vocabulary]) -> None:
        """Saves both vocabularies, and records the fingerprints of their files."""
        for vocabulary, path in zip(vocabularies, self.vocabulary_files, strict=True):
            vocabulary.save(path)
        self.add_to_record(model=self.vocabulary_fingerprints())

    def vocabulary_fingerprints(self) -> list[str]:
        """Fingerprints of the vocabularies' files, which also contain tokenizers and scores."""
        return [_file_fingerprint(path) for path in self.vocabulary_files]

    def load_vocabularies(self) -> list[Vocabulary]:
        """Both vocabularies, which must be those in the record, if it has them."""
        vocabularies = [data.load_vocabulary(path) for path in self.vocabulary_files]
        if self.read_record().get("model") not in (None, self.vocabulary_fingerprints()):
            raise ValueError(
                f"the vocabularies in {self.path} are not the vocabularies of its model"
            )
        return vocabularies

    def save_model(self, model: keras.Model) -> None:
        """Saves the model, and records the fingerprint of its file."""
        with replacing(self.model) as unfinished:
            model.save(unfinished)
        self.add_to_record(model_file=_file_fingerprint(self.model))

    def load_model(self, option: str = "--out") -> tuple[keras.Model, list[Vocabulary]]:
        """The model, and the vocabularies that it was trained with; `option` named the folder."""
        if not self.model.exists():
            raise FileNotFoundError(
                f"{self.model} does not exist. Train first, or use {option} to choose its folder."
            )
        vocabularies = self.load_vocabularies()
        if self.read_record().get("model_file") not in (None, _file_fingerprint(self.model)):
            raise ValueError(
                f"{self.model} was damaged or replaced after its training. "
                f'Delete "model_file" in {self.record} to use it nevertheless.'
            )
        try:
            # Not compiled: an older run has its optimizer, and a PyTorch run that of its backend.
            model = keras.models.load_model(self.model, compile=False)
        except UNREADABLE as error:
            first = (str(error).strip().splitlines() or [""])[0][:200]
            raise ValueError(
                f"{self.model} cannot be loaded as a model ({type(error).__name__}: {first})"
            ) from error
        check_parts(str(self.model), model, *vocabularies)
        return model, vocabularies


def load_ensemble(paths: Sequence[Path]) -> tuple[Any, list[Vocabulary]]:
    """The model of a run, or several as one, with their vocabularies."""
    option = "--out" if len(paths) == 1 else "--ensemble"
    loaded = [Folder(path).load_model(option) for path in paths]
    model, vocabularies = loaded[0]
    if len(loaded) == 1:
        return model, vocabularies
    for path in paths:
        if Folder(path).vocabulary_fingerprints() != Folder(paths[0]).vocabulary_fingerprints():
            raise ValueError(
                f"--ensemble: {paths[0]} and {path} were trained with different vocabularies"
            )
    return decoding.Ensemble([model for model, _ in loaded]), vocabularies


def languages(record: dict[str, Any]) -> tuple[str, str]:
    """The languages of the source and of the target, from the record of a run."""
    if record.get("data", "") is None:
        return "en", "fr"  # of the grammar
    source, target = record.get("settings", {}).get("languages", ("en", "de"))
    return source, target


def fingerprint(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _file_fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
