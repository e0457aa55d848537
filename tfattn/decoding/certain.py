"""The tokens of a search that is still running, as far as nothing can change them."""

from collections.abc import Iterator

import keras
import numpy as np

from tfattn.decoding.arguments import Settings
from tfattn.decoding.run import Progress, Run

__all__ = ["certain"]


def certain(run: Run, steps: int) -> Iterator[int]:
    """Each token of the first row, once nothing can change it."""
    given, progress = 0, run.begin(steps)
    while True:
        is_done, tokens = _look(run, progress)
        yield from tokens[given:]
        given = max(given, len(tokens))
        if is_done:
            return
        progress = run.go_on(progress, steps)


def _look(run: Run, progress: Progress) -> tuple[bool, list[int]]:
    """(Whether the search is done, the tokens that are certain.)"""
    numpy = keras.ops.convert_to_numpy
    found = progress.found
    position, most = int(progress.position), found.tokens.shape[1] - 1
    if position >= most or numpy(found.done).all():
        tokens = numpy(run.end(progress)["tokens"])[0]
        return True, _written(tokens, run.key.settings)
    rows = numpy(found.tokens)[numpy(run.alive(found)), 1 : position + 1]
    common = []
    # As far as the shortest goes.
    for tokens in zip(*(_written(row, run.key.settings) for row in rows), strict=False):
        if len(set(tokens)) > 1:
            break
        common.append(tokens[0])
    return False, common


def _written(row: np.ndarray, settings: Settings) -> list[int]:
    """A row without the padding after it, of which the first may be the end token."""
    count = np.max(np.flatnonzero(row != settings.padding_id), initial=-1) + 1
    return row[: count + (settings.padding_id == settings.end_id)].tolist()
