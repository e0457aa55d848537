"""The one loop that every search runs in: a step, a choice, and rows that follow the choice.

A `search` here is a `tfattn.decoding.Search` as `run.Key.made` fills it: with tensors, with rules
that have theirs, and with the settings of its run.
"""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.arguments import Start
from tfattn.decoding.best import log_probabilities
from tfattn.decoding.found import Found, Ruled
from tfattn.decoding.rows import loop_over_open_rows, with_room, with_written_room
from tfattn.decoding.rules.base import Rule
from tfattn.decoding.state import StateLayout, take_rows

__all__ = ["advance", "begin", "decode"]


def decode(step: Step, search: Any, start: Start, state: Any) -> tuple[Found, Any, int | Tensor]:
    """Runs a search to its end.

    Returns:
        (`Found`, state, size of the vocabulary), a row for each hypothesis; the state is None where
        it is not asked for.
    """
    found, position = begin(search, start), ops.zeros((), "int32")
    _, found, state, size = advance(step, search, position, found, state, is_first=True)
    return found, state, size


def begin(search: Any, start: Start) -> Found:
    """What is found before the first step."""
    batch = ops.shape(start.tokens)[0]
    all_open = ops.zeros((batch,), "bool")
    found = Found(start.tokens, all_open, all_open, start.limits, all_open, all_open, start.own)
    if not search.rules:
        return found
    states = tuple(rule.start(start.tokens, start.limits) for rule in search.rules)
    return found._replace(ruled=Ruled(states, ops.zeros((batch,))))


def advance(
    step: Step,
    search: Any,
    position: Tensor,
    found: Found,
    state: Any,
    is_first: bool,
    most: Tensor | None = None,
) -> tuple[Tensor, Found, Any, int | Tensor]:
    """Steps on, to the end of the search or `most` steps far.

    Args:
        position: scalar int32, the last decided position.
        found, state: as they are there.
        is_first: whether it is the first step of the search, and has one row a sentence.
        most: scalar int32, or None for all.
    Returns:
        (position, found, state, size of the vocabulary). The state is None where neither `most` nor
        the settings ask for it.
    """
    length = ops.shape(found.tokens)[1] - 1
    until = length if most is None else ops.minimum(position + most, length)
    keep = search.return_state or most is not None
    # One step stands before the loop: it shows which tensors of the state are constants, and of the
    # first one row a sentence is enough.
    width = 1 if is_first else search.width
    whole = state
    if search.drop_done_rows and not is_first:
        state = with_written_room(state, position, length)
    logits, after = step(found.tokens[:, :-1], position, state)
    size = ops.shape(logits)[-1]
    found, rows = _choose(search, logits, after, position, found, width)
    layout = StateLayout(state, after)
    changing, constants = layout.split()
    changing = tuple(take_rows(leaf, rows) for leaf in changing)
    if search.drop_done_rows and not is_first:
        changing = with_room(changing, layout.rooms(whole))
    if search.width > width:
        constants = [
            ops.repeat(leaf, search.width, axis=0) if len(leaf.shape) else leaf
            for leaf in constants
        ]

    def one_step(position, found, changing, constants):
        """One step of every row: the next (position, found, changing)."""
        state = layout.join(changing, constants)
        logits, returned = step(found.tokens[:, :-1], position, state)
        after = layout.changed(state, returned)
        if search.return_state:
            # The state of a row is asked for as it was when the row ended, however long the other
            # rows go on.
            after = [
                _where_rows(found.ended, old, new) for old, new in zip(changing, after, strict=True)
            ]
        found, rows = _choose(search, logits, returned, position, found, search.width)
        return position + 1, found, tuple(take_rows(leaf, rows) for leaf in after)

    def going_on(position, found, changing):
        return ops.logical_and(position < until, ops.logical_not(ops.all(found.done)))

    carried = (position + 1, found, changing)
    if search.drop_done_rows:
        position, found, changing = loop_over_open_rows(
            one_step, *carried, tuple(constants), layout.is_past, keep=keep, until=until
        )
    else:
        position, found, changing = ops.while_loop(
            going_on, lambda *carried: one_step(*carried, constants), carried
        )
    return position, found, layout.join(changing, constants) if keep else None, size


def _choose(
    search: Any,
    logits: Tensor,
    state: Any,
    position: Tensor,
    found: Found,
    width: int,
) -> tuple[Found, Tensor | None]:
    """(What is found with the tokens at `position + 1`, the rows that these come from)."""
    prompted, given = _prompted(state, position), logits
    logits = _without_padding(search, logits, prompted)
    broken = _where_open(search, found, ops.isnan(ops.max(logits, axis=-1)))
    # A NaN would be lost with its beam: the whole sentence has it.
    broken = ops.any(ops.reshape(broken, (-1, width)), axis=1)
    found = found._replace(broken=ops.logical_or(found.broken, ops.repeat(broken, width)))
    if search.rules:
        logits, found = _by_rules(search, logits, state, position, found, prompted)
    if search.sums:
        logits = log_probabilities(logits, given)
    else:
        none_left = _where_open(search, found, ops.max(logits, axis=-1) == -float("inf"))
        found = found._replace(stuck=ops.logical_or(found.stuck, none_left))
    if prompted is not None:
        found = found._replace(goes_on=_prompted(state, position + 1))
    token, rows, own = search.choose(logits, position, found, width)
    found = found.of_rows(rows)
    ended = ops.logical_or(found.ended, ops.logical_or(found.stuck, found.broken))
    token = ops.where(ended, search.padding_id, ops.cast(token, "int32"))
    here = ops.arange(ops.shape(found.tokens)[1], dtype="int32") == position + 1
    tokens = ops.where(here, token[:, None], found.tokens)
    ended = ops.logical_or(ended, search.ends(token, position, found))
    found = found._replace(tokens=tokens, ended=ended, done=ended, own=own, goes_on=())
    return found._replace(done=search.done(found)), rows


def _without_padding(search: Any, logits: Tensor, prompted: Tensor | None) -> Tensor:
    """The logits, those of padding -inf: it stands after the end of a row, and is no choice."""
    if search.padding_id == search.end_id:
        return logits
    hidden = ops.arange(ops.shape(logits)[-1], dtype="int32") == search.padding_id  # (V,)
    if prompted is not None:
        hidden = ops.logical_and(hidden, ops.logical_not(prompted)[:, None])
    return ops.where(hidden, -float("inf"), logits)


def _where_open(search: Any, found: Found, rows: Tensor) -> Tensor:
    """Those of the rows, bool `(R,)`, that are still written."""
    still_open = ops.logical_and(search.alive(found), ops.logical_not(found.ended))
    return ops.logical_and(rows, still_open)


def _by_rules(
    search: Any,
    logits: Tensor,
    state: Any,
    position: Tensor,
    found: Found,
    prompted: Tensor | None,
) -> tuple[Tensor, Found]:
    """(The logits after the rules, `found` with what these keep)."""
    given = ops.cast(logits, "float32")
    logits, states, at_end = given, [], ops.zeros_like(found.ruled.at_end)
    for rule, own in zip(search.rules, found.ruled.states, strict=True):
        logits, own = rule.adjust(logits, found.tokens[:, :-1], position, own)
        states.append(own)
        if rule.reads is not None:
            at_end = at_end + rule.score_at_end(_read(rule, state))
    if prompted is not None:  # what is given stays, whatever forbids it
        logits = ops.where(prompted[:, None], given, logits)
    at_end = ops.where(found.ended, found.ruled.at_end, at_end)
    return logits, found._replace(ruled=Ruled(tuple(states), at_end))


def _prompted(state: Any, position: Tensor) -> Tensor | None:
    """bool `(R,)`, the rows whose next token a prompt gives; None where a state has no prompt."""
    prompt = state.get("prompt") if isinstance(state, dict) else None
    if not ops.is_tensor(prompt) or len(prompt.shape) != 2:
        return None
    if "int" not in keras.backend.standardize_dtype(prompt.dtype):
        return None  # vectors, which are no tokens
    last = ops.shape(prompt)[1] - 1  # always padding
    return ops.take(prompt, ops.minimum(position, last), axis=1) != 0


def _read(rule: Rule, state: Any) -> Tensor:
    """The entry of a step's state that a rule reads."""
    if not isinstance(state, dict) or not ops.is_tensor(state.get(rule.reads)):
        expected = f"have the entry {rule.reads!r} for {type(rule).__name__}"
        known = sorted(state) if isinstance(state, dict) else state
        _checks.fail("step", "state", f"{expected}, see `tfattn.rules`", known)
    return state[rule.reads]


def _where_rows(rows: Tensor, these: Tensor, others: Tensor) -> Tensor:
    """`these` in the rows that are True, else `others`; of scalars, without rows, `others`."""
    if len(these.shape) == 0:
        return others
    return ops.where(ops.reshape(rows, (-1,) + (1,) * (len(these.shape) - 1)), these, others)
