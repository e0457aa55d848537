"""The loop of every search: run the step, choose tokens, reorder the rows of the state.

`search` is the user's object as `Search` prepares it for a call: it also has the ids of the call,
and the attributes named in `tensors`, its own and its rules', are tensors.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from tfattn import _checks
from tfattn._shared import Past
from tfattn._types import Size, Step, Tensor
from tfattn.decoding.best import log_probabilities
from tfattn.decoding.form import Form
from tfattn.decoding.rows import loop_over_open_rows, resized_pasts, with_written_positions


class SearchState(NamedTuple):
    """The tokens so far, one row per hypothesis; the rows of one sentence are neighbors."""

    tokens: Tensor  # int32 (R, 1 + L), the begin token in front
    ended: Tensor  # bool (R,), whether the row has its end token or its maximum length
    done: Tensor  # bool (R,), whether the result of the row's sentence is final
    limits: Tensor  # int32 (R,), the maximum length of the row
    stuck: Tensor  # bool (R,), whether the rules left the row no token, which ends it
    has_nan: Tensor  # bool (R,), whether scores of the row's sentence were NaN, which ends it
    extra: dict[str, Any]  # the search's own tensors (R, ...), from `Search.start` and `choose`
    rule_states: tuple[Any, ...] = ()  # each rule's state: nested tensors (R, ...)
    prompted: Any = ()  # bool (R,), whether the next token is in the prompt
    prompt_continues: Any = ()  # bool (R,), whether the prompt has a further token

    def of_rows(self, rows: Tensor | None) -> "SearchState":
        """A selection of rows; `extra` is unchanged, since the search selects its rows itself."""
        taken = keras.tree.map_structure(
            lambda tensor: take_rows(tensor, rows), self._replace(extra={})
        )
        return taken._replace(extra=self.extra)


class Progress(NamedTuple):
    """A search between two steps."""

    position: Any  # scalar int32, the last decided position
    found: SearchState
    state: Any  # the step's state; None where nobody asks for it


def take_rows(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """Some rows of a tensor; the tensor itself if `rows` is None or it is a scalar."""
    return tensor if rows is None or len(tensor.shape) == 0 else ops.take(tensor, rows, axis=0)


def advance(
    step: Step,
    settings: tuple[tuple[Form, ...], bool],
    progress: Progress,
    tensors: tuple[dict[str, Tensor], ...],
    max_steps: Tensor | None,
) -> tuple[Progress, dict[str, Any]]:
    """Runs a search to its end, or for `max_steps` steps: (progress, results by name).

    `settings`: the forms of the search and its rules; whether each sentence still has one row.
    """
    forms, is_first = settings
    search, *rules = [form.filled(own) for form, own in zip(forms, tensors, strict=True)]
    search.rules = tuple(rules)
    position, found, state = progress
    length = ops.shape(found.tokens)[1] - 1
    until = length if max_steps is None else ops.minimum(position + max_steps, length)
    is_kept = search.return_state or max_steps is not None
    # One step runs before the loop: it shows which tensors of the state are constants, and needs
    # only one row per sentence if it is the first.
    width = 1 if is_first else search.width
    is_cut = search.drop_done_rows and not is_first
    given = with_written_positions(state, position, length) if is_cut else state
    logits, after = step(found.tokens[:, :-1], position, given)
    found, rows = _choose(search, logits, after, position, found, width)
    parts = _StateParts(given, after)
    changing = tuple([take_rows(leaf, rows) for leaf in parts.changing.values()])
    if is_cut:
        changing = resized_pasts(changing, parts.past_lengths(state))
    constants = tuple(parts.constants.values())
    if search.width > width:
        constants = tuple([_repeated(leaf, search.width) for leaf in constants])
    carried = (position + 1, found, changing)
    position, found, changing = _loop(step, search, parts, carried, constants, until, is_kept)
    results, rows = search.results(found)
    state = parts.join(changing, constants) if is_kept else None
    if search.return_state:
        state = keras.tree.map_structure(
            lambda leaf: take_rows(leaf, rows) if ops.is_tensor(leaf) else leaf, state
        )
    return Progress(position, found, state), results


def _loop(
    step: Step,
    search: Any,
    parts: "_StateParts",
    carried: tuple[Tensor, SearchState, tuple[Tensor, ...]],
    constants: tuple[Tensor, ...],
    until: Size,
    is_kept: bool,
) -> tuple[Tensor, SearchState, tuple[Tensor, ...]]:
    """The carried (position, found, changing tensors of the state) after the last step."""

    def one_step(
        position: Tensor, found: SearchState, changing: tuple[Tensor, ...], constants: Any
    ) -> tuple[Tensor, SearchState, tuple[Tensor, ...]]:
        state = parts.join(changing, constants)
        logits, returned = step(found.tokens[:, :-1], position, state)
        after = parts.changed(state, returned)
        if search.return_state:
            # The returned state of a row is that at its end, however long the other rows are.
            pairs = zip(changing, after, strict=True)
            after = [_where_rows(found.ended, old, new) for old, new in pairs]
        found, rows = _choose(search, logits, returned, position, found, search.width)
        return position + 1, found, tuple([take_rows(leaf, rows) for leaf in after])

    if search.drop_done_rows:
        return loop_over_open_rows(
            one_step, *carried, constants, parts.is_past, keep=is_kept, until=until
        )

    def unfinished(position: Tensor, found: SearchState, changing: tuple[Tensor, ...]) -> Tensor:
        return ops.logical_and(position < until, ops.logical_not(ops.all(found.done)))

    body = functools.partial(one_step, constants=constants)
    return ops.while_loop(unfinished, body, carried)


def _choose(
    search: Any, logits: Tensor, state: Any, position: Tensor, found: SearchState, width: int
) -> tuple[SearchState, Tensor | None]:
    """(`found` with the tokens at `position + 1`, the rows that these extend)."""
    prompted, given = _prompted(state, position), logits
    if search.padding_id != search.end_id:  # padding only follows the end of a row
        hidden = ops.arange(ops.shape(logits)[-1], dtype="int32") == search.padding_id  # (V,)
        if prompted is not None:
            hidden = ops.logical_and(hidden, ops.logical_not(prompted)[:, None])
        logits = ops.where(hidden, -float("inf"), logits)
    is_open = ops.logical_and(search.alive(found), ops.logical_not(found.ended))
    unusable = ops.logical_or(ops.isnan(given), given == float("inf"))
    has_nan = ops.logical_and(is_open, ops.any(unusable, axis=-1))
    # A NaN would be lost with its beam, so it marks the whole sentence.
    has_nan = ops.repeat(ops.any(ops.reshape(has_nan, (-1, width)), axis=1), width)
    found = found._replace(has_nan=ops.logical_or(found.has_nan, has_nan))
    if search.rules:
        logits, found = _apply_rules(search, logits, position, found, prompted)
    if search.uses_log_probs:
        logits = log_probabilities(logits, given)
    else:
        none_left = ops.logical_and(is_open, ops.max(logits, axis=-1) == -float("inf"))
        found = found._replace(stuck=ops.logical_or(found.stuck, none_left))
    if prompted is not None:
        continues = _prompted(state, position + 1)
        found = found._replace(prompted=prompted, prompt_continues=continues)
    token, rows, extra = search.choose(logits, position, found, width)
    return _written(search, token, position, found.of_rows(rows), extra), rows


def _written(
    search: Any, token: Tensor, position: Tensor, found: SearchState, extra: dict[str, Tensor]
) -> SearchState:
    """`found` with a token `(R,)` of each row at `position + 1`, and the search's own tensors."""
    ended = ops.logical_or(found.ended, ops.logical_or(found.stuck, found.has_nan))
    token = ops.where(ended, search.padding_id, ops.cast(token, "int32"))
    here = ops.arange(ops.shape(found.tokens)[1], dtype="int32") == position + 1
    tokens = ops.where(here, token[:, None], found.tokens)
    ends = token == search.end_id
    if ops.is_tensor(found.prompt_continues):  # the row does not end within its prompt
        ends = ops.logical_and(ends, ops.logical_not(found.prompt_continues))
    # At its limit a row ends without an end token, so that longer rows do not change it.
    ends = ops.logical_or(ends, position + 1 >= found.limits)
    ended = ops.logical_or(ended, ends)
    found = found._replace(tokens=tokens, ended=ended, done=ended, extra=extra)
    return found._replace(done=search.done(found), prompted=(), prompt_continues=())


def _apply_rules(
    search: Any, logits: Tensor, position: Tensor, found: SearchState, prompted: Tensor | None
) -> tuple[Tensor, SearchState]:
    """(The logits after the rules, `found` with the new state of the rules)."""
    given = ops.cast(logits, "float32")
    logits, states = given, []
    for rule, own in zip(search.rules, found.rule_states, strict=True):
        logits, own = rule.adjust(logits, found.tokens[:, :-1], position, own)
        states.append(own)
    if prompted is not None:  # no rule changes a prompt
        logits = ops.where(prompted[:, None], given, logits)
    return logits, found._replace(rule_states=tuple(states))


def _prompted(state: Any, position: Tensor) -> Tensor | None:
    """bool `(R,)`, the rows whose next token is in the prompt; None if the state has no prompt."""
    prompt: Any = state.get("prompt") if isinstance(state, dict) else None
    if not ops.is_tensor(prompt) or len(prompt.shape) != 2:
        return None
    if "int" not in keras.backend.standardize_dtype(prompt.dtype):
        return None  # embeddings rather than tokens
    last = ops.shape(prompt)[1] - 1  # always padding
    return ops.take(prompt, ops.minimum(position, last), axis=1) != 0


def _repeated(tensor: Tensor, times: int) -> Tensor:
    return ops.repeat(tensor, times, axis=0) if len(tensor.shape) else tensor


def _where_rows(rows: Tensor, these: Tensor, others: Tensor) -> Tensor:
    """`these` in the rows that are True, else `others`; scalars have no rows and are `others`."""
    if len(these.shape) == 0:
        return others
    return ops.where(ops.reshape(rows, (-1,) + (1,) * (len(these.shape) - 1)), these, others)


class _StateParts:
    """The tensors of a step's state by path, known from the first step: those that change, and
    constants, which the step returns as the very same objects.

    `is_past` tells of each changing tensor whether it is the tensor of a `Past`.
    """

    def __init__(self, before: Any, after: Any):
        given = dict(keras.tree.flatten_with_path(before))
        self.after, self.leaves = after, dict(keras.tree.flatten_with_path(after))
        self.changing: dict[Any, Tensor] = {}
        self.constants: dict[Any, Tensor] = {}
        for path, leaf in self.leaves.items():
            if ops.is_tensor(leaf):
                (self.constants if given.get(path) is leaf else self.changing)[path] = leaf
        pasts = paths_of_pasts("step", after)
        self.is_past = [path in pasts for path in self.changing]

    def join(self, changing: Sequence[Tensor], constants: Sequence[Tensor]) -> Any:
        """The state with these tensors."""
        leaves = dict(self.leaves)
        leaves.update(zip(self.changing, changing, strict=True))
        leaves.update(zip(self.constants, constants, strict=True))
        return keras.tree.pack_sequence_as(self.after, list(leaves.values()))

    def past_lengths(self, state: Any) -> list[int | Tensor | None]:
        """The length of each `Past` among the changing tensors of a state; None for others."""
        leaves = dict(keras.tree.flatten_with_path(state))
        pairs = zip(self.changing, self.is_past, strict=True)
        return [ops.shape(leaves[path])[-2] if past else None for path, past in pairs]

    def changed(self, before: Any, after: Any) -> list[Tensor]:
        """The changing tensors after a later step, from the states before and after it."""
        before, after = (dict(keras.tree.flatten_with_path(state)) for state in (before, after))
        wrong = set(after) ^ set(self.leaves) or {
            path
            for path, leaf in after.items()
            if path not in self.changing
            and leaf is not before[path]
            and (path in self.constants or leaf != before[path])
        }
        if wrong:
            expected = "keep its structure, and change only in tensors that the first step changed"
            _checks.fail("step", "state", expected, wrong)
        return [after[path] for path in self.changing]


def paths_of_pasts(who: str, state: Any) -> set[tuple[Any, ...]]:
    """The paths of the leaves that are the tensor of a `Past`."""
    mark: Any = object()

    def marked(part: Any) -> Past | None:
        if not isinstance(part, Past):
            return None  # `traverse` descends into it
        shape = getattr(part.tensor, "shape", ())
        if len(shape) < 3:
            expected = "have a `Past` of one tensor of rank 3 or more, (B, ..., L, P)"
            _checks.fail(who, "state", expected, tuple(shape) or part.tensor)
        return Past(mark)

    leaves = keras.tree.flatten_with_path(keras.tree.traverse(marked, state))
    return {path for path, leaf in leaves if leaf is mark}
