"""Atomic writes: a file is replaced as a whole or not at all."""

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator


@contextlib.contextmanager
def replacing(filepath: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A temporary path to write to; at the end its file replaces `filepath`.

    If writing fails, the old file stays. The temporary path is on the same disk, since a file is
    not moved atomically to another, and has the same extension, from which Keras infers the format.
    """
    filepath = pathlib.Path(os.path.realpath(filepath))  # a link's target, not the link
    if filepath.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(filepath))
    if not filepath.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(filepath.parent))
    unfinished = filepath.with_name(f"unfinished.{filepath.name}")
    try:
        yield unfinished
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())  # the new file is on disk before the old one is removed
        os.replace(unfinished, filepath)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
