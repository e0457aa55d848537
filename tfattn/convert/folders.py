"""Folders of exported models: the files of another engine, and the vocabularies."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from tfattn import _checks
from tfattn.models.transformer import Transformer

VOCABULARIES = ("source.vocabulary", "target.vocabulary")


def checked(
    who: str, folder: str | os.PathLike[str], model: Transformer, vocabularies: Sequence[Any]
) -> str:
    """The path of a new or empty folder; raises unless vocabularies have the model's sizes."""
    both = _checks.pair(who, "vocabularies", vocabularies)
    for i, (side, vocabulary) in enumerate(zip(("source", "target"), both, strict=True)):
        name = f"vocabularies[{i}]"
        _checks.vocabulary(who, name, vocabulary)
        size = getattr(model, f"{side}_vocabulary_size")
        if len(vocabulary) != size:
            _checks.fail(who, name, f"have {size} entries, as in the model", len(vocabulary))
    folder = _checks.path(who, "folder", folder)
    if os.path.exists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        _checks.fail(who, "folder", "be new, or an empty folder", folder)
    return folder


@contextlib.contextmanager
def atomic_folder(folder: str | os.PathLike[str]) -> Iterator[str]:
    """A temporary folder that becomes `folder` on success; an error leaves nothing behind."""
    above, name = os.path.split(os.path.realpath(folder))
    os.makedirs(above, exist_ok=True)
    # On the same file system, so that the move is atomic.
    with tempfile.TemporaryDirectory(prefix="unfinished.", dir=above) as aside:
        unfinished = os.path.join(aside, name)
        os.mkdir(unfinished)
        yield unfinished
        if os.path.isdir(folder):  # an empty one
            os.rmdir(folder)
        os.replace(unfinished, os.path.join(above, name))


def save_vocabularies(vocabularies: Sequence[Any], folder: str) -> None:
    for vocabulary, name in zip(vocabularies, VOCABULARIES, strict=True):
        vocabulary.save(os.path.join(folder, name))
