"""A search with all that it is given: run in one piece, or a few steps at a time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.arguments import Ids, Settings, Start, checked_arguments, checked_limits
from tfattn.decoding.compiling import compiled
from tfattn.decoding.loop import advance, begin, decode
from tfattn.decoding.rules.base import Form, Rule, check_room
from tfattn.decoding.search import Found, Search
from tfattn.decoding.state import take_rows

__all__ = ["NothingLeftError", "Plan", "Progress", "planned"]


class NothingLeftError(ValueError):
    """A row had no token to write.

    Args:
        before, after: the message around the name of the row.
        place: of the row in its batch.
        row: its name.
    """

    def __init__(self, before: str, place: int, after: str, row: str | None = None):
        super().__init__(f"{before} {row or f'row {place}'} {after}")
        self.before, self.place, self.after = before, place, after

    def of_row(self, row: str) -> "NothingLeftError":
        """The same of a row by another name."""
        return NothingLeftError(self.before, self.place, self.after, row)


class Key(NamedTuple):
    """What a search is compiled for: another key is another compiled function."""

    kind: Callable[..., Search]
    options: tuple[tuple[str, Any], ...]  # of `kind`, besides its tensors
    settings: Settings
    forms: tuple[Form, ...]  # of the rules

    def made(self, tensors: dict[str, Tensor], tables: tuple) -> tuple[Search, tuple[Rule, ...]]:
        """(the search, its rules), with their tensors."""
        ids = {name: getattr(self.settings, name) for name in ("begin_id", "end_id", "padding_id")}
        pairs = zip(self.forms, tables, strict=True)
        rules = tuple(form.filled(table, **ids) for form, table in pairs)
        search = self.kind(**dict(self.options), **tensors)
        search.rules, search.settings = rules, self.settings
        return search, rules


class Progress(NamedTuple):
    """How far a search has come."""

    position: Tensor  # scalar int32, how many tokens each open row has
    found: Found
    state: Any


class Plan(NamedTuple):
    """A search, its rules and everything that they are given."""

    who: str
    step: Step
    key: Key
    start: Start
    state: Any
    tensors: dict[str, Tensor]  # of the search
    tables: tuple[dict[str, Tensor], ...]  # of each rule
    rules: tuple[Rule, ...]

    def run(self) -> tuple[dict[str, Any], Any]:
        """(results by name, the state of their rows), of the whole search."""
        results, state, seen = compiled(_run, self.step, self.key)(
            self.start, self.state, self.tensors, self.tables
        )
        self.check(seen)
        return results, state

    def begin(self, most: int) -> Progress:
        """The search after its first steps, `most` of them."""
        return self._told(
            *compiled(_begin, self.step, self.key)(
                self.start, self.state, self.tensors, self.tables, ops.convert_to_tensor(most)
            )
        )

    def go_on(self, progress: Progress, most: int) -> Progress:
        """The search after further steps, `most` of them."""
        return self._told(
            *compiled(_go_on, self.step, self.key)(
                progress, self.tensors, self.tables, ops.convert_to_tensor(most)
            )
        )

    def alive(self, found: Found) -> Tensor:
        """bool `(R,)`, which rows may still lead to a result."""
        return self.key.made(self.tensors, self.tables)[0].alive(found)

    def end(self, progress: Progress) -> dict[str, Any]:
        """The results by name of a search that is done."""
        return self.key.made(self.tensors, self.tables)[0].results(progress.found)[0]

    def _told(self, progress: Progress, seen: dict[str, Tensor]) -> Progress:
        self.check(seen)
        # A number or a word is no tensor before a compiled function, and may be one after it.
        given = dict(keras.tree.flatten_with_path(self.state))
        leaves = [
            given[path] if isinstance(given.get(path), int | float | str) else leaf
            for path, leaf in keras.tree.flatten_with_path(progress.state)
        ]
        return progress._replace(state=keras.tree.pack_sequence_as(progress.state, leaves))

    def check(self, seen: dict[str, Tensor]) -> None:
        """Raises a ValueError where the rules were not for this vocabulary or left a row nothing to
        write, or where scores were NaN.

        Inside of a function that the caller compiles nothing is known yet.
        """
        if not _is_known(seen["stuck"]):
            return
        to_numpy = ops.convert_to_numpy
        for rule in self.rules:
            rule.check_vocabulary(int(seen["vocabulary_size"]))
        number = "score tokens by numbers, and not by NaN, which comes from NaN in its weights;"
        for name, argument, expected, has in (
            ("broken", "step", number, "has NaN"),
            ("stuck", "rules", "leave each row a token to write;", "has none"),
        ):
            value, places = getattr(self, argument), np.flatnonzero(to_numpy(seen[name]))
            if value and len(places):
                written = int(to_numpy(seen["written"])[places[0]])
                after = f"after {written} tokens" if written else "to begin with"
                raise NothingLeftError(
                    f"{self.who}: `{argument}` must {expected}",
                    int(places[0]),
                    f"{has} {after}. Received: {argument}={value!r}",
                )


def planned(
    who: str,
    kind: Callable[..., Search],
    options: dict[str, Any],
    tensors: Callable[[int], dict[str, Tensor]] = lambda length: {},
    *,
    step: Step,
    state: Any,
    batch_size: int | Tensor,
    max_length: int | Sequence[int],
    ids: Ids,
    return_state: bool,
    rules: Sequence[Rule],
) -> Plan:
    """The plan of a search, its arguments checked.

    Args:
        who: name of the search.
        kind: of search, called with `options` and what `tensors` gives.
        options: hashable.
        tensors: from the greatest length to what the compiled search takes by name.
        step, state, batch_size, max_length, ids, return_state, rules: those of the search.
    """
    settings, start, state = checked_arguments(
        who, step, state, batch_size, max_length, ids, return_state
    )
    longest = start.tokens.shape[1] - 1
    limits = checked_limits(who, max_length, batch_size)
    rules = _checked_rules(who, rules, batch_size, limits, settings, kind)
    tables = tuple(
        {name: ops.convert_to_tensor(getattr(rule, name)) for name in rule.tensors}
        for rule in rules
    )
    key = Key(kind, tuple(options.items()), settings, tuple(map(Form.of, rules)))
    return Plan(who, step, key, start, state, tensors(longest), tables, rules)


def _checked_rules(
    who: str,
    rules: Sequence[Rule],
    batch_size: int | Tensor,
    limits: np.integer | np.ndarray,
    settings: Settings,
    kind: Callable[..., Search],
) -> tuple[Rule, ...]:
    if not isinstance(rules, list | tuple):
        _checks.fail(who, "rules", "be a sequence of rules of `tfattn.rules`", rules)
    for rule in rules:
        if not isinstance(rule, Rule):
            _checks.fail(who, "rules", "hold rules of `tfattn.rules`", rule)
        if rule.beams_only and not kind.sums:
            _checks.fail(who, "rules", "hold none that is for `beam_search` alone", rule)
        rows = batch_size
        if ops.is_tensor(batch_size):
            rows = len(limits) if np.ndim(limits) else rule.num_rows
        if rule.num_rows not in (None, rows):
            expected = f"have a row for each sentence, `batch_size`={rows} of them"
            _checks.fail(who, "rules", expected, rule)
        try:
            hash(Form.of(rule))
        except TypeError:
            expected = "hold rules whose attributes can be hashed, or are named in `tensors`"
            _checks.fail(who, "rules", expected, rule)
        check_room(who, rule, limits, settings.ids)
    return tuple(rules)


def _is_known(tensor: Tensor) -> bool:
    """Whether a tensor has numbers, and is not that of a function that is being compiled."""
    try:
        ops.convert_to_numpy(tensor)
    except Exception:  # each backend has its own
        return False
    return True


def _run(
    step: Step,
    key: Key,
    start: Start,
    state: Any,
    tensors: dict[str, Tensor],
    tables: tuple[dict[str, Tensor], ...],
) -> tuple[dict[str, Any], Any, dict[str, Tensor]]:
    search, rules = key.made(tensors, tables)
    found, state, size = decode(step, search, key.settings, rules, start, state)
    results, rows = search.results(found)
    state = keras.tree.map_structure(
        lambda leaf: take_rows(leaf, rows) if ops.is_tensor(leaf) else leaf, state
    )
    return results, state, _seen(search, found, size)


def _begin(
    step: Step,
    key: Key,
    start: Start,
    state: Any,
    tensors: dict[str, Tensor],
    tables: tuple[dict[str, Tensor], ...],
    most: Tensor,
) -> tuple[Progress, dict[str, Tensor]]:
    search, rules = key.made(tensors, tables)
    found, position = begin(search, rules, start), ops.zeros((), "int32")
    *progress, size = advance(
        step, search, key.settings, rules, position, found, state, is_first=True, most=most
    )
    progress = Progress(*progress)
    return progress, _seen(search, progress.found, size)


def _go_on(
    step: Step,
    key: Key,
    progress: Progress,
    tensors: dict[str, Tensor],
    tables: tuple[dict[str, Tensor], ...],
    most: Tensor,
) -> tuple[Progress, dict[str, Tensor]]:
    search, rules = key.made(tensors, tables)
    *progress, size = advance(
        step, search, key.settings, rules, *progress, is_first=False, most=most
    )
    progress = Progress(*progress)
    return progress, _seen(search, progress.found, size)


def _seen(search: Search, found: Found, size: int | Tensor) -> dict[str, Tensor]:
    """What `Plan.check` looks at: the vocabulary's size, and which sentences had no token where."""
    written = ops.sum(ops.cast(found.tokens[:, 1:] != search.settings.padding_id, "int32"), axis=1)
    return {
        "vocabulary_size": size,
        "stuck": search.stuck(found),
        "broken": found.broken[:: search.width],
        "written": ops.max(ops.reshape(written, (-1, search.width)), axis=1),
    }
