"""The files of a run in `--out`."""

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import filelock
import keras

from tfattn import data, decoding
from tfattn._files import replacing
from tfattn.training.backup import lock
from tfattn.training.best_weights import is_intact
from tfattn.translator.corpus import Vocabulary

# Errors of Keras and of its file formats for a damaged file, or one of classes that are missing.
_UNREADABLE = (
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


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
        """Locks the folder against other training runs until this process ends. A missing folder is
        created if `new`, else ignored.
        """
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
            if _is_record(found):
                return found
        raise ValueError(
            f"{self.record} cannot be read. Delete it to continue without checking the settings, "
            "or use --out to choose another folder."
        )

    def add_to_record(self, **entries: Any) -> None:
        record = {**self.read_record(), **entries}
        with replacing(self.record) as unfinished:
            unfinished.write_text(json.dumps(record, indent=1), encoding="utf-8")

    def check_best_weights(self) -> None:
        """Raises an OSError if the best weights of a run are missing or damaged."""
        exists = self.best_weights.exists()
        if not exists or not is_intact(self.best_weights):
            raise OSError(
                f"{self.best_weights} is {'damaged' if exists else 'missing'}. A run cannot be "
                "completed without its best weights. Use --out to choose another folder."
            )

    def save_vocabularies(self, vocabularies: Sequence[Vocabulary]) -> None:
        for vocabulary, path in zip(vocabularies, self.vocabulary_files, strict=True):
            vocabulary.save(path)

    def load_vocabularies(self, owner: str) -> list[Vocabulary]:
        """Both vocabularies, checked by the record of the `owner`, "run" or "model"."""
        vocabularies = [data.load_vocabulary(path) for path in self.vocabulary_files]
        trained_with = self.read_record().get(owner)
        if trained_with is None:
            print(
                f"note: {self.path} has no record of the vocabularies that its {owner} was trained "
                "with",
                file=sys.stderr,
            )
        elif trained_with != [_file_fingerprint(path) for path in self.vocabulary_files]:
            raise ValueError(
                f"the vocabularies in {self.path} are not the vocabularies of its {owner}"
            )
        return vocabularies

    def save_model(self, model: keras.Model, vocabularies: Sequence[Vocabulary]) -> None:
        """Saves the model, and records the fingerprints of its file and vocabularies."""
        with replacing(self.model) as unfinished:
            model.save(unfinished)
        self.add_to_record(
            model=vocabulary_fingerprints(vocabularies), model_file=_file_fingerprint(self.model)
        )

    def load_model(self, option: str = "--out") -> tuple[keras.Model, list[Vocabulary]]:
        """The model, and the vocabularies that it was trained with.

        Args:
            option: the option that named the folder, for errors.
        """
        if not self.model.exists():
            raise FileNotFoundError(
                f"{self.model} does not exist. Train first, or use {option} to choose its folder."
            )
        vocabularies = self.load_vocabularies("model")
        if self.read_record().get("model_file") not in (None, _file_fingerprint(self.model)):
            raise ValueError(
                f"{self.model} was damaged or replaced after its training. "
                f'Delete "model_file" in {self.record} to use it nevertheless.'
            )
        try:
            # Not compiled: an older run has its optimizer, and a PyTorch run that of its backend.
            model = keras.models.load_model(self.model, compile=False)
        except _UNREADABLE as error:
            first = (str(error).strip().splitlines() or [""])[0][:200]
            raise ValueError(
                f"{self.model} cannot be loaded as a model ({type(error).__name__}: {first})"
            ) from error
        if not callable(getattr(model, "encode", None)) or not hasattr(model, "step"):
            raise ValueError(
                f"{self.model} contains a {type(model).__name__}, which does not translate"
            )
        sizes = [getattr(model, f"{side}_vocabulary_size", None) for side in ("source", "target")]
        if sizes != [len(vocabulary) for vocabulary in vocabularies]:
            raise ValueError(
                f"{self.model} expects vocabularies of {sizes[0]} and {sizes[1]} entries; the "
                f"vocabularies in its folder have {len(vocabularies[0])} and {len(vocabularies[1])}"
            )
        return model, vocabularies


def load_ensemble(paths: Sequence[Path]) -> tuple[Any, list[Vocabulary]]:
    """The model of a run, or several as one, with their vocabularies."""
    option = "--out" if len(paths) == 1 else "--ensemble"
    loaded = [Folder(path).load_model(option) for path in paths]
    model, vocabularies = loaded[0]
    if len(loaded) == 1:
        return model, vocabularies
    wanted = vocabulary_fingerprints(vocabularies)
    for path, (_, others) in zip(paths, loaded, strict=True):
        if vocabulary_fingerprints(others) != wanted:
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


# The entries of a record and their types.
_ENTRIES = {
    "settings": dict,
    "stands_for": dict,
    "sentences": str,
    "data": str | None,
    "run": list,
    "model": list,
    "model_file": str,
    "epochs": int,
    "search": dict,
}
_SETTINGS = {"languages": list, "pairs": int, "seed": int, "init": str | None}
# The search that an imported translator was published with; without `num_beams`, greedy search.
SEARCH = {"num_beams": int, "length_penalty": float, "early_stopping": bool, "first_token": int}


def _is_record(found: Any) -> bool:
    if not isinstance(found, dict) or not _fits(found, _ENTRIES):
        return False
    settings = found.get("settings", {})
    languages = settings.get("languages", ["en", "de"])
    if not _fits(settings, _SETTINGS) or [type(each) for each in languages] != [str, str]:
        return False
    search = found.get("search", {})
    if not set(search) <= set(SEARCH) or not _fits(search, SEARCH):
        return False
    # The sentences of the grammar are generated again, from these entries.
    from_grammar = "data" in found and found["data"] is None
    return not from_grammar or {"pairs", "seed"} <= set(settings) and "sentences" in found


def _fits(found: dict[str, Any], kinds: dict[str, Any]) -> bool:
    return all(isinstance(found[name], kinds[name]) for name in set(found) & set(kinds))


def fingerprint(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def vocabulary_fingerprints(vocabularies: Sequence[Vocabulary]) -> list[str]:
    """Fingerprints of the vocabularies' files, which also contain tokenizers and scores."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vocabulary")
        found = []
        for vocabulary in vocabularies:
            vocabulary.save(path)
            found.append(_file_fingerprint(path))
    return found


def _file_fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
