"""Files that are never half written: a new file replaces the old one in one step."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

__all__ = ["replacing"]


@contextlib.contextmanager
def replacing(filepath: str | os.PathLike) -> Iterator[pathlib.Path]:
    """A path to write to; at the end, what was written replaces the file at `filepath`.

    An error, a kill or a full disk in the middle of writing leaves the old file. Whatever the
    package writes goes through here, or through `convert.folders.whole` if it is a folder. The path
    lies beside `filepath`, so that both are on one disk, and has its ending, by which Keras tells
    formats apart.

    Args:
        filepath: where the file is, or will be; its folder is there.
    Returns:
        A context manager, which gives a `pathlib.Path`.
    Raises:
        FileNotFoundError: nothing was written.
    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "notes.txt")
        >>> with replacing(path) as unfinished:
        ...     _ = unfinished.write_text("whole")
        >>> path.read_text()
        'whole'
    """
    filepath = pathlib.Path(os.path.realpath(filepath))  # what a link names, not the link
    unfinished = filepath.with_name(f"unfinished.{filepath.name}")
    try:
        yield unfinished
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())  # on disk before the old one is gone
        os.replace(unfinished, filepath)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
