"""Files of a run: not damaged in silence, and not written by two runs at once."""

import contextlib
import hashlib
import io
import os
import pathlib

import filelock
import keras

__all__ = ["has_checksum", "lock", "weights", "with_checksum"]

_MARK = b"\nsha256 "  # then the checksum itself, in bytes


def with_checksum(content: bytes) -> bytes:
    """The content of a file, and a checksum at its end. Readers of HDF5 stop before it."""
    return content + _MARK + hashlib.sha256(content).digest()


def has_checksum(filepath: str | os.PathLike) -> bool:
    """Whether the file ends with a checksum, and is as it was then."""
    content = memoryview(pathlib.Path(filepath).read_bytes())
    size = len(content) - len(_MARK) - hashlib.sha256().digest_size
    return size >= 0 and content[size:] == _MARK + hashlib.sha256(content[:size]).digest()


class _Memory(io.BytesIO):
    """A file in memory, of a name by which Keras writes weights."""

    def __str__(self):
        return "memory.weights.h5"


def weights(model: keras.Model) -> bytes:
    """What `model.save_weights` writes. On a full disk HDF5 would end the process by SIGSEGV."""
    file = _Memory()
    model.save_weights(file)
    return file.getvalue()


def lock(filepath: str | os.PathLike) -> filelock.BaseFileLock:
    """Has no other process lock the file, until this one ends or calls `release` as often as this.

    The lock is a file beside it, which stays there; the system releases a lock whose process dies.

    Raises:
        filelock.Timeout: another process has locked it.
    """
    # One object a process: a fit that was interrupted, in a notebook say, locks out no later one.
    options = {"thread_local": False, "is_singleton": True}
    found = filelock.FileLock(f"{os.path.realpath(filepath)}.lock", timeout=0, **options)
    with contextlib.suppress(NotImplementedError):  # a disk of a cluster may have no locks
        found.acquire()
    return found
