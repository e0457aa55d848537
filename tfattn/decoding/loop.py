"""The one loop that every search runs in: a step, a choice, and rows that follow the choice."""

from typing import Any

from keras import ops

from tfattn._types import Step, Tensor
from tfattn.decoding.arguments import Settings, Start
from tfattn.decoding.rows import loop_over_open_rows
from tfattn.decoding.search import Found, Search
from tfattn.decoding.state import StateLayout, take_rows

__all__ = ["decode"]


def decode(
    step: Step, search: Search, settings: Settings, start: Start, state: Any
) -> tuple[Found, Any]:
    """Runs a search to its end.

    Returns:
        (`Found`, state), a row for each hypothesis; the state is None where it is not asked for.
    """
    batch, length = ops.shape(start.tokens)[0], ops.shape(start.tokens)[1] - 1
    all_open = ops.zeros((batch,), "bool")
    found = Found(start.tokens, all_open, all_open, start.limits, search.start(batch))
    # The first step stands before the loop: it shows which tensors of the state are constants, and
    # one row a sentence is enough for it.
    position = ops.zeros((), "int32")
    logits, after = step(start.tokens[:, :-1], position, state)
    found, rows = _choose(search, settings, logits, position, found, width=1)
    layout = StateLayout(state, after)
    changing, constants = layout.split()
    changing = tuple(take_rows(leaf, rows) for leaf in changing)
    if search.width > 1:
        constants = [
            ops.repeat(leaf, search.width, axis=0) if len(leaf.shape) else leaf
            for leaf in constants
        ]

    def advance(position, found, changing, constants):
        """One step of every row: the next (position, found, changing)."""
        state = layout.join(changing, constants)
        logits, after = step(found.tokens[:, :-1], position, state)
        after = layout.changed(state, after)
        if settings.return_state:
            # The state of a row is asked for as it was when the row ended, however long the other
            # rows go on.
            after = [
                _where_rows(found.ended, old, new) for old, new in zip(changing, after, strict=True)
            ]
        found, rows = _choose(search, settings, logits, position, found, search.width)
        return position + 1, found, tuple(take_rows(leaf, rows) for leaf in after)

    def going_on(position, found, changing):
        return ops.logical_and(position < length, ops.logical_not(ops.all(found.done)))

    carried = (position + 1, found, changing)
    if settings.drop_done_rows:
        found, changing = loop_over_open_rows(
            advance, *carried, tuple(constants), layout.is_past, keep=settings.return_state
        )
    else:
        found, changing = ops.while_loop(
            going_on, lambda *carried: advance(*carried, constants), carried
        )[1:]
    return found, layout.join(changing, constants) if settings.return_state else None


def _choose(
    search: Search, settings: Settings, logits: Tensor, position: Tensor, found: Found, width: int
) -> tuple[Found, Tensor | None]:
    """(What is found with the tokens at `position + 1`, the rows that these come from)."""
    token, rows, own = search.choose(logits, position, found, width)
    tokens, ended, limits = (
        take_rows(tensor, rows) for tensor in (found.tokens, found.ended, found.limits)
    )
    token = ops.where(ended, settings.padding_id, token)
    here = ops.arange(ops.shape(tokens)[1], dtype="int32") == position + 1
    tokens = ops.where(here, token[:, None], tokens)
    # At its limit a row ends without an end token, so that no longer row beside it changes it.
    ended = ops.logical_or(ended, ops.logical_or(token == settings.end_id, position + 1 >= limits))
    found = Found(tokens, ended, ended, limits, own)
    return found._replace(done=search.done(found)), rows


def _where_rows(rows: Tensor, these: Tensor, others: Tensor) -> Tensor:
    """`these` in the rows that are True, else `others`; of scalars, without rows, `others`."""
    if len(these.shape) == 0:
        return others
    return ops.where(ops.reshape(rows, (-1,) + (1,) * (len(these.shape) - 1)), these, others)
