"""The one loop that every search runs in: a step, a choice, and rows that go where the choice sends
them.
"""

from typing import Any, NamedTuple

from keras import ops

from tfattn.decoding.rows import loop_over_open_rows
from tfattn.decoding.state import StateParts, taken

__all__ = ["Found", "decode"]


class Found(NamedTuple):
    """What is decided so far, a row for each hypothesis; those of one sentence stand together."""

    tokens: Any  # int32 (R, 1 + L), the begin token in front
    ended: Any  # bool (R,), whether the row has its end token, or as many tokens as it may have
    done: Any  # bool (R,), whether nothing can change the result of the row's sentence any more
    limits: Any  # int32 (R,), the most tokens that the row may have
    own: dict  # tensors (R, ...) of the search


def decode(step, search, settings, start, state):
    """Runs a search to its end.

    Args:
        step: see `tfattn.decoding`.
        search: an object with
            width: rows that a sentence has after the first step (before it, one);
            start(batch): what it carries in `Found.own`;
            choose(logits, position, found, width): the next token of each row, the row that each
            comes from (None:
                each from its own), and the new `own`;
            done(found): `Found.done`.
        settings: `Settings`.
        start: int32 `(B, 1 + L)`, begin and padding, and the rows' limits, int32 `(B,)`.
        state: of the step.
    Returns:
        (`Found`, state), a row for each hypothesis.
    """
    tokens, limits = start
    open_rows = ops.zeros(ops.shape(tokens)[:1], "bool")
    found = Found(tokens, open_rows, open_rows, limits, search.start(ops.shape(tokens)[0]))
    # The first step stands before the loop: it shows which tensors of the state a step leaves
    # alone, and one row a sentence is enough for it.
    position = ops.zeros((), "int32")
    logits, after = step(tokens[:, :-1], position, state)
    found, rows = _chosen(search, settings, logits, position, found, width=1)
    parts = StateParts(state, after)
    changing, constants = parts.split()
    changing = tuple(taken(leaf, rows) for leaf in changing)
    constants = tuple(_repeated(leaf, search.width) for leaf in constants)

    def advance(position, found, changing, constants):
        """One step for every row: the next position, what is found then, and the tensors that the
        step changed.
        """
        state = parts.joined(changing, constants)
        logits, after = step(found.tokens[:, :-1], position, state)
        after = parts.changed(state, after)
        if settings.return_state:
            # Who asks for the state wants it as it was when a row ended, whatever other rows went
            # on to do.
            after = [
                _where(found.ended, old, new) for old, new in zip(changing, after, strict=True)
            ]
        found, rows = _chosen(search, settings, logits, position, found, search.width)
        return position + 1, found, tuple(taken(leaf, rows) for leaf in after)

    begun = (position + 1, found, changing, constants)
    if settings.drop_done_rows:
        found, changing = loop_over_open_rows(
            advance, *begun, past=parts.past, keep=settings.return_state
        )
    else:
        found, changing = _loop_over_all_rows(advance, *begun)
    return found, parts.joined(changing, constants) if settings.return_state else None


def _chosen(search, settings, logits, position, found, width):
    """What is found once the search has chosen the tokens at `position + 1`, and the rows that they
    come from.
    """
    token, rows, own = search.choose(logits, position, found, width)
    tokens, ended, limits = (
        taken(tensor, rows) for tensor in (found.tokens, found.ended, found.limits)
    )
    token = ops.where(ended, settings.padding_id, token)
    here = ops.arange(ops.shape(tokens)[1], dtype="int32") == position + 1
    tokens = ops.where(here, token[:, None], tokens)
    # At its limit a row ends without an end token, so that what it becomes hangs on no longer row
    # beside it.
    ended = ops.logical_or(ended, ops.logical_or(token == settings.end_id, position + 1 >= limits))
    found = Found(tokens, ended, ended, limits, own)
    return found._replace(done=search.done(found)), rows


def _loop_over_all_rows(advance, position, found, changing, constants):
    length = ops.shape(found.tokens)[1] - 1

    def going_on(position, found, changing):
        return ops.logical_and(position < length, ops.logical_not(ops.all(found.done)))

    def body(position, found, changing):
        return advance(position, found, changing, constants)

    return ops.while_loop(going_on, body, (position, found, changing))[1:]


def _repeated(leaf, times):
    return leaf if times == 1 or len(leaf.shape) == 0 else ops.repeat(leaf, times, axis=0)


def _where(rows, these, others):
    """`these` in the rows that are True, `others` elsewhere; a scalar has no rows and is of the
    others.
    """
    if len(these.shape) == 0:
        return others
    return ops.where(ops.reshape(rows, (-1,) + (1,) * (len(these.shape) - 1)), these, others)
