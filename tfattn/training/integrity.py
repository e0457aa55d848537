"""Checksums against damaged files, and locks against two runs that write the same files."""

import contextlib
import hashlib
import io
import os
import pathlib
from typing import Any

import filelock
import keras

_MARK = b"\nsha256 "  # followed by the checksum in bytes


def with_checksum(content: bytes) -> bytes:
    """Appends a checksum to the content of a file. Readers of HDF5 ignore it."""
    return content + _MARK + hashlib.sha256(content).digest()


def has_checksum(filepath: str | os.PathLike[str]) -> bool:
    """Whether the file ends with a valid checksum."""
    content = memoryview(pathlib.Path(filepath).read_bytes())
    size = len(content) - len(_MARK) - hashlib.sha256().digest_size
    return size >= 0 and content[size:] == _MARK + hashlib.sha256(content[:size]).digest()


class _Memory(io.BytesIO):
    """A file in memory, with the name that Keras requires for weights."""

    def __str__(self) -> str:
        return "memory.weights.h5"


def weights(model: keras.Model) -> bytes:
    """The bytes of `model.save_weights`. On a full disk HDF5 would crash with SIGSEGV."""
    file = _Memory()
    model.save_weights(file)
    return file.getvalue()


def lock(filepath: str | os.PathLike[str]) -> filelock.BaseFileLock:
    """Locks the file against other processes, until this process ends or has released each lock.

    The lock is a permanent file next to the file; the system releases the lock of a dead process.

    Raises:
        filelock.Timeout: another process has locked it.
    """
    # A singleton per process, so that an interrupted `fit` does not block later calls.
    options: dict[str, Any] = {"thread_local": False, "is_singleton": True}
    found = filelock.FileLock(f"{os.path.realpath(filepath)}.lock", timeout=0, **options)
    with contextlib.suppress(NotImplementedError):  # some cluster file systems have no locks
        found.acquire()
    return found
