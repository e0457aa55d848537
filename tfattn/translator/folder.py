"""The files of a run in `--out`."""

import hashlib
import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import filelock
import keras

from tfattn import data, decoding
from tfattn._files import replacing
from tfattn.decoding.translate import check_parts
from tfattn.training.backup import UNREADABLE, lock
from tfattn.translator.arguments import LANGUAGES
from tfattn.translator.corpus import Vocabularies


class Folder:
    """Paths of a run's files, and `run.json`, the record of its settings and fingerprints."""

    def __init__(self, path: Path):
        self.path = path
        self.record = path / "run.json"
        self.backup = path / "backup.npz"
        self.best_weights = path / "best.weights.h5"
        self.epochs = path / "epochs.csv"
        self.model = path / "model.keras"
        self.vocabulary_files = [path / "source.vocabulary", path / "target.vocabulary"]

    def lock(self) -> None:
        """Creates and locks the folder against other runs until this process ends."""
        os.makedirs(os.path.realpath(self.path), exist_ok=True)  # a link's target may not exist yet
        try:
            self._lock = lock(self.backup)
        except filelock.Timeout:
            raise ValueError(
                f"another training run writes to {self.path}. Wait for its end, or use --out to "
                "choose another folder."
            ) from None

    def read_record(self) -> dict[str, Any]:
        if not self.record.exists():
            return {}
        try:
            return json.loads(self.record.read_text(encoding="utf-8"))
        except ValueError:
            raise ValueError(
                f"{self.record} cannot be read. Delete it to continue without checking the "
                "settings, or use --out to choose another folder."
            ) from None

    def add_to_record(self, **entries: Any) -> None:
        record = {**self.read_record(), **entries}
        with replacing(self.record) as unfinished:
            unfinished.write_text(json.dumps(record, indent=1), encoding="utf-8")

    def languages(self) -> tuple[str, str]:
        """The languages of the source and of the target."""
        source, target = self.read_record().get("settings", {}).get("languages", LANGUAGES)
        return source, target

    def save_vocabularies(self, vocabularies: Vocabularies) -> None:
        """Saves both vocabularies, and records the fingerprints of their files."""
        for vocabulary, path in zip(vocabularies, self.vocabulary_files, strict=True):
            vocabulary.save(path)
        self.add_to_record(model=self.vocabulary_fingerprints())

    def vocabulary_fingerprints(self) -> list[str]:
        """Fingerprints of the vocabularies' files, which also contain tokenizers and scores."""
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in self.vocabulary_files]

    def load_vocabularies(self) -> Vocabularies:
        """Both vocabularies, which must be those in the record, if it has them."""
        source, target = map(data.load_vocabulary, self.vocabulary_files)
        if self.read_record().get("model") not in (None, self.vocabulary_fingerprints()):
            raise ValueError(f"the vocabularies in {self.path} are not those of its model")
        return source, target

    def save_model(self, model: keras.Model) -> None:
        with replacing(self.model) as unfinished:
            model.save(unfinished)

    def load_model(self) -> tuple[keras.Model, Vocabularies]:
        """The model, and the vocabularies that it was trained with."""
        if not self.model.exists():
            raise FileNotFoundError(
                f"{self.model} does not exist. Train first, or use --out to choose its folder."
            )
        vocabularies = self.load_vocabularies()
        try:
            with zipfile.ZipFile(self.model) as archive:  # Keras does not compare its checksums
                if damaged := archive.testzip():
                    raise ValueError(f"{damaged} is damaged")
            # Not compiled: an older run has its optimizer, and a PyTorch run that of its backend.
            model = keras.models.load_model(self.model, compile=False)
        except UNREADABLE as error:
            first = (str(error).strip().splitlines() or [""])[0][:200]
            raise ValueError(
                f"{self.model} cannot be loaded as a model ({type(error).__name__}: {first})"
            ) from error
        check_parts(str(self.model), model, *vocabularies)
        return model, vocabularies


def load_ensemble(paths: Sequence[Path]) -> tuple[Any, Vocabularies]:
    """The model of a run, or several as one, with their vocabularies."""
    folders = [Folder(path) for path in paths]
    models, vocabularies = zip(*(folder.load_model() for folder in folders), strict=True)
    for folder in folders[1:]:
        if folder.vocabulary_fingerprints() != folders[0].vocabulary_fingerprints():
            raise ValueError(
                f"--ensemble: {paths[0]} and {folder.path} were trained with different vocabularies"
            )
    return models[0] if len(models) == 1 else decoding.Ensemble(models), vocabularies[0]


def fingerprint(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
