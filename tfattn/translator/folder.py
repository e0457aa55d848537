"""The files that a run keeps in `--out`."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from tfattn import data
from tfattn.training.files import replacing
from tfattn.translator.corpus import Words

__all__ = ["Folder", "fingerprint"]


class Folder:
    """Where each file lies, and the record `run.json`: what run and model were made of."""

    def __init__(self, path: Path):
        self.path = path
        self.record = path / "run.json"
        self.backup = path / "backup.npz"
        self.best_weights = path / "best.weights.h5"
        self.model = path / "model.keras"
        self.vocabularies = [path / "source.vocabulary", path / "target.vocabulary"]

    def read_record(self) -> dict:
        if not self.record.exists():
            return {}
        with contextlib.suppress(ValueError):
            found = json.loads(self.record.read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return found
        raise ValueError(
            f"{self.record} is damaged: what its run was begun with cannot be told; delete this "
            "file to go on unchecked, or name another folder with --out"
        )

    def add_to_record(self, **entries) -> None:
        record = {**self.read_record(), **entries}
        with replacing(self.record) as unfinished:
            unfinished.write_text(json.dumps(record, indent=1), encoding="utf-8")

    def save_vocabularies(self, words: list[Words]) -> None:
        for vocabulary, path in zip(words, self.vocabularies, strict=True):
            with replacing(path) as unfinished:
                vocabulary.save(unfinished)

    def load_vocabularies(self, owner: str) -> list[Words]:
        """Source and target; refuses others than those that the `owner`, "run" or "model", was
        trained with.
        """
        words = [data.load_vocabulary(path) for path in self.vocabularies]
        trained_with = self.read_record().get(owner)
        if trained_with is None:
            print(
                f"note: no record in {self.path} tells which vocabularies its {owner} was trained "
                "with",
                file=sys.stderr,
            )
        elif trained_with != vocabulary_fingerprints(words):
            raise ValueError(
                f"the vocabularies in {self.path} are not those that its {owner} was trained with"
            )
        return words


def fingerprint(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def vocabulary_fingerprints(words: list[Words]) -> list[str]:
    """Tell vocabularies apart that have the same number of entries."""
    return [fingerprint(each.words) for each in words]
