"""Python in a process of its own, with the tfattn that this one has."""

import os
import subprocess
import sys


def python(*arguments, folder=None, text=None, **environment):
    """The finished process of `python ARGUMENTS`, started in `folder`.

    Args:
        text: its standard input.   environment: adds to this process's own.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        input=text,
        encoding="utf-8",
        errors="surrogateescape",  # what stands for a broken byte in the text becomes that byte
    )


def printed(*arguments, **options):
    """What it prints, where it ends well."""
    done = python(*arguments, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
