"""The loop of every search: run the step, choose tokens, reorder the rows of the state.

A `search` here is a `tfattn.decoding.Search` as `run.Key.search` returns it: the search and its
rules have tensors as attributes, and the settings of the run.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.best import log_probabilities
from tfattn.decoding.rows import loop_over_open_rows, resized_pasts, with_written_positions
from tfattn.decoding.rules.base import Rule
from tfattn.decoding.search_state import RuleState, SearchState
from tfattn.decoding.state import StateLayout, take_rows


def begin(search: Any, tokens: Tensor, limits: Tensor, extra: dict[str, Tensor]) -> SearchState:
    """The `SearchState` before the first step."""
    batch = ops.shape(tokens)[0]
    all_open = ops.zeros((batch,), "bool")
    found = SearchState(tokens, all_open, all_open, limits, all_open, all_open, extra)
    if not search.rules:
        return found
    states = tuple(rule.start(tokens, limits) for rule in search.rules)
    return found._replace(rule_state=RuleState(states, ops.zeros((batch,), "float32")))


def advance(
    step: Step,
    search: Any,
    position: Tensor,
    found: SearchState,
    state: Any,
    is_first: bool,
    max_steps: Tensor | None = None,
) -> tuple[Tensor, SearchState, Any, int | Tensor]:
    """Runs the search from `position`, the last decided one, to its end, or for at most `max_steps`
    steps: (position, found, state, size of the vocabulary). At first there is one row per sentence.

    The state is None if neither `max_steps` nor `return_state` is given.
    """
    length = ops.shape(found.tokens)[1] - 1
    until = length if max_steps is None else ops.minimum(position + max_steps, length)
    keep = search.return_state or max_steps is not None
    # One step runs before the loop: it shows which tensors of the state are constants, and needs
    # only one row per sentence if it is the first.
    width = 1 if is_first else search.width
    whole = state
    if search.drop_done_rows and not is_first:
        state = with_written_positions(state, position, length)
    logits, after = step(found.tokens[:, :-1], position, state)
    size = ops.shape(logits)[-1]
    found, rows = _choose(search, logits, after, position, found, width)
    layout = StateLayout(state, after)
    leaves, constants = layout.split()
    changing = tuple(take_rows(leaf, rows) for leaf in leaves)
    if search.drop_done_rows and not is_first:
        changing = resized_pasts(changing, layout.past_lengths(whole))
    if search.width > width:
        constants = [
            ops.repeat(leaf, search.width, axis=0) if len(leaf.shape) else leaf
            for leaf in constants
        ]

    def one_step(
        position: Tensor,
        found: SearchState,
        changing: tuple[Tensor, ...],
        constants: Sequence[Tensor],
    ) -> tuple[Tensor, SearchState, tuple[Tensor, ...]]:
        """One step of every row: the next (position, found, changing)."""
        state = layout.join(changing, constants)
        logits, returned = step(found.tokens[:, :-1], position, state)
        after = layout.changed(state, returned)
        if search.return_state:
            # The returned state of a row is that at its end, however long the other rows are.
            after = [
                _where_rows(found.ended, old, new) for old, new in zip(changing, after, strict=True)
            ]
        found, rows = _choose(search, logits, returned, position, found, search.width)
        return position + 1, found, tuple(take_rows(leaf, rows) for leaf in after)

    def unfinished(position: Tensor, found: SearchState, changing: tuple[Tensor, ...]) -> Tensor:
        return ops.logical_and(position < until, ops.logical_not(ops.all(found.done)))

    carried = (position + 1, found, changing)
    if search.drop_done_rows:
        position, found, changing = loop_over_open_rows(
            one_step, *carried, tuple(constants), layout.is_past, keep=keep, until=until
        )
    else:
        position, found, changing = ops.while_loop(
            unfinished,
            lambda position, found, changing: one_step(position, found, changing, constants),
            carried,
        )
    return position, found, layout.join(changing, constants) if keep else None, size


def _choose(
    search: Any,
    logits: Tensor,
    state: Any,
    position: Tensor,
    found: SearchState,
    width: int,
) -> tuple[SearchState, Tensor | None]:
    """(`found` with the tokens at `position + 1`, the rows that these extend)."""
    prompted, given = _prompted(state, position), logits
    logits = _without_padding(search, logits, prompted)
    unusable = ops.logical_or(ops.isnan(given), given == float("inf"))
    has_nan = _where_open(search, found, ops.any(unusable, axis=-1))
    # A NaN would be lost with its beam, so it marks the whole sentence.
    has_nan = ops.any(ops.reshape(has_nan, (-1, width)), axis=1)
    found = found._replace(has_nan=ops.logical_or(found.has_nan, ops.repeat(has_nan, width)))
    if search.rules:
        logits, found = _apply_rules(search, logits, state, position, found, prompted)
    if search.uses_log_probs:
        logits = log_probabilities(logits, given)
    else:
        none_left = _where_open(search, found, ops.max(logits, axis=-1) == -float("inf"))
        found = found._replace(stuck=ops.logical_or(found.stuck, none_left))
    if prompted is not None:
        continues = _prompted(state, position + 1)
        found = found._replace(prompted=prompted, prompt_continues=continues)
    token, rows, extra = search.choose(logits, position, found, width)
    found = found.of_rows(rows)
    ended = ops.logical_or(found.ended, ops.logical_or(found.stuck, found.has_nan))
    token = ops.where(ended, search.padding_id, ops.cast(token, "int32"))
    here = ops.arange(ops.shape(found.tokens)[1], dtype="int32") == position + 1
    tokens = ops.where(here, token[:, None], found.tokens)
    ended = ops.logical_or(ended, search.ends(token, position, found))
    found = found._replace(tokens=tokens, ended=ended, done=ended, extra=extra)
    found = found._replace(done=search.done(found), prompted=(), prompt_continues=())
    return found, rows


def _without_padding(search: Any, logits: Tensor, prompted: Tensor | None) -> Tensor:
    """The logits with -inf for padding, which only follows the end of a row."""
    if search.padding_id == search.end_id:
        return logits
    hidden = ops.arange(ops.shape(logits)[-1], dtype="int32") == search.padding_id  # (V,)
    if prompted is not None:
        hidden = ops.logical_and(hidden, ops.logical_not(prompted)[:, None])
    return ops.where(hidden, -float("inf"), logits)


def _where_open(search: Any, found: SearchState, rows: Tensor) -> Tensor:
    """The mask `rows`, bool `(R,)`, without rows that have ended or do not exist."""
    still_open = ops.logical_and(search.alive(found), ops.logical_not(found.ended))
    return ops.logical_and(rows, still_open)


def _apply_rules(
    search: Any,
    logits: Tensor,
    state: Any,
    position: Tensor,
    found: SearchState,
    prompted: Tensor | None,
) -> tuple[Tensor, SearchState]:
    """(The logits after the rules, `found` with the new state of the rules)."""
    given = ops.cast(logits, "float32")
    logits, states, at_end = given, [], ops.zeros_like(found.rule_state.at_end)
    for rule, own in zip(search.rules, found.rule_state.states, strict=True):
        logits, own = rule.adjust(logits, found.tokens[:, :-1], position, own)
        states.append(own)
        if rule.state_key is not None:
            at_end = at_end + rule.score_at_end(_read(rule, state))
    if prompted is not None:  # no rule changes a prompt
        logits = ops.where(prompted[:, None], given, logits)
    at_end = ops.where(found.ended, found.rule_state.at_end, at_end)
    return logits, found._replace(rule_state=RuleState(tuple(states), at_end))


def _prompted(state: Any, position: Tensor) -> Tensor | None:
    """bool `(R,)`, the rows whose next token is in the prompt; None if the state has no prompt."""
    prompt: Any = state.get("prompt") if isinstance(state, dict) else None
    if not ops.is_tensor(prompt) or len(prompt.shape) != 2:
        return None
    if "int" not in keras.backend.standardize_dtype(prompt.dtype):
        return None  # embeddings rather than tokens
    last = ops.shape(prompt)[1] - 1  # always padding
    return ops.take(prompt, ops.minimum(position, last), axis=1) != 0


def _read(rule: Rule, state: Any) -> Tensor:
    """The entry of a step's state that a rule reads."""
    if not isinstance(state, dict) or not ops.is_tensor(state.get(rule.state_key)):
        expected = f"have the entry {rule.state_key!r} for {type(rule).__name__}"
        known = sorted(map(str, state)) if isinstance(state, dict) else state
        _checks.fail("step", "state", f"{expected}, see `tfattn.rules`", known)
    return state[rule.state_key]


def _where_rows(rows: Tensor, these: Tensor, others: Tensor) -> Tensor:
    """`these` in the rows that are True, else `others`; scalars have no rows and are `others`."""
    if len(these.shape) == 0:
        return others
    return ops.where(ops.reshape(rows, (-1,) + (1,) * (len(these.shape) - 1)), these, others)
