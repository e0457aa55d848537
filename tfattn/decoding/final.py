"""The final tokens of a search that is still running."""

from collections.abc import Iterator

import keras
import numpy as np

from tfattn.decoding.arguments import Settings
from tfattn.decoding.run import Progress, Run


def final_tokens(run: Run, steps: int) -> Iterator[int]:
    """Each token of the first row, once no further step can change it."""
    num_given, progress = 0, run.begin(steps)
    while True:
        is_done, tokens = _final_prefix(run, progress)
        yield from tokens[num_given:]
        num_given = max(num_given, len(tokens))
        if is_done:
            return
        progress = run.resume(progress, steps)


def _final_prefix(run: Run, progress: Progress) -> tuple[bool, list[int]]:
    """(Whether the search is done, the final tokens: the common prefix of all live rows.)"""
    numpy = keras.ops.convert_to_numpy
    found = progress.found
    position, length = int(progress.position), found.tokens.shape[1] - 1
    if position >= length or numpy(found.done).all():
        tokens = numpy(run.end(progress)["tokens"])[0]
        return True, written(tokens, run.key.settings)
    rows = numpy(found.tokens)[numpy(run.alive(found)), 1 : position + 1]
    common = []
    for tokens in zip(*(written(row, run.key.settings) for row in rows), strict=False):
        if len(set(tokens)) > 1:
            break
        common.append(tokens[0])
    return False, common


def written(row: np.ndarray, settings: Settings) -> list[int]:
    """A row without its padding, except for an end token that is also the padding token."""
    count = np.max(np.flatnonzero(row != settings.padding_id), initial=-1) + 1
    return row[: count + (settings.padding_id == settings.end_id)].tolist()
