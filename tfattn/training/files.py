"""Files of a run: not damaged in silence, nor written by two runs at once."""

import contextlib
import hashlib
import os
import pathlib

import filelock

__all__ = ["add_checksum", "has_checksum", "lock"]

_MARK = b"\nsha256 "  # then the checksum itself, in bytes


def add_checksum(filepath: str | os.PathLike) -> None:
    """Ends the file with a checksum of what it holds. HDF5 and others read no further than their
    own end.
    """
    content = pathlib.Path(filepath).read_bytes()
    with open(filepath, "ab") as file:
        file.write(_MARK + hashlib.sha256(content).digest())


def has_checksum(filepath: str | os.PathLike) -> bool:
    """Whether the file ends with a checksum, and is as it was then."""
    content = memoryview(pathlib.Path(filepath).read_bytes())
    size = len(content) - len(_MARK) - hashlib.sha256().digest_size
    return size >= 0 and content[size:] == _MARK + hashlib.sha256(content[:size]).digest()


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
