"""Folders with a whole model in them: files of another engine, and the vocabularies."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from tfattn import _checks
from tfattn.models.transformer import Transformer

__all__ = [
    "ENGINE_FILES",
    "VOCABULARIES",
    "check_vocabularies",
    "fingerprints",
    "marks",
    "new",
    "save_vocabularies",
    "whole",
]

VOCABULARIES = ("source.vocabulary", "target.vocabulary")
ENGINE_FILES = (*VOCABULARIES, "model.bin")  # of a folder of CTranslate2's


def check_vocabularies(who: str, model: Transformer, vocabularies: Sequence[Any]) -> None:
    """Raises unless there is a vocabulary for each side, of the model's size."""
    if not isinstance(vocabularies, list | tuple) or len(vocabularies) != 2:
        _checks.fail(who, "vocabularies", "be a pair, source and target", vocabularies)
    for i, (side, vocabulary) in enumerate(zip(("source", "target"), vocabularies, strict=True)):
        name = f"vocabularies[{i}]"
        _checks.vocabulary(who, name, vocabulary)
        size = getattr(model, f"{side}_vocabulary_size")
        if len(vocabulary) != size:
            expected = f"have {size} entries, as the model's has"
            _checks.fail(who, name, expected, len(vocabulary))


def new(who: str, folder: str | os.PathLike) -> str:
    """The path of a folder that is not there yet, or is empty."""
    folder = _checks.path(who, "folder", folder)
    if os.path.exists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
        _checks.fail(who, "folder", "be new, or an empty folder", folder)
    return folder


@contextlib.contextmanager
def whole(folder: str) -> Iterator[str]:
    """A folder to write to, which becomes the one of `new` at the end: after an error nothing is
    there, and a second try may begin.
    """
    empty = os.path.isdir(folder)
    above, name = os.path.split(os.path.realpath(folder))
    os.makedirs(above, exist_ok=True)
    # On the same disk as the folder, so that a move is one step.
    with tempfile.TemporaryDirectory(prefix="unfinished.", dir=folder if empty else above) as aside:
        unfinished = os.path.join(aside, name)
        os.mkdir(unfinished)
        yield unfinished
        if empty:
            for file in os.listdir(unfinished):
                os.replace(os.path.join(unfinished, file), os.path.join(folder, file))
        else:
            os.replace(unfinished, folder)


def save_vocabularies(vocabularies: Sequence[Any], folder: str) -> None:
    for vocabulary, name in zip(vocabularies, VOCABULARIES, strict=True):
        vocabulary.save(os.path.join(folder, name))


def marks(vocabulary: Any) -> dict[str, str]:
    """The words that mark a target sentence, by their names in CTranslate2's `config.json`."""
    begin = vocabulary.words[vocabulary.begin_id]
    return {
        "unk_token": vocabulary.words[vocabulary.unknown_id],
        "bos_token": begin,
        "eos_token": vocabulary.words[vocabulary.end_id],
        "decoder_start_token": begin,
    }


def fingerprints(folder: str, names: Sequence[str] = VOCABULARIES) -> list[str]:
    """Of files: vocabularies may differ in a tokenizer, or in scores of subwords, alone."""
    found = []
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            found.append(hashlib.sha256(file.read()).hexdigest())
    return found
