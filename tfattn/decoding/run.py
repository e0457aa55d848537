"""A run of a search: with all that it is given, in one piece or a few steps at a time."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.arguments import (
    Ids,
    Settings,
    Start,
    checked_limits,
    checked_settings,
    checked_state,
)
from tfattn.decoding.compiling import compiled
from tfattn.decoding.configurable import Form
from tfattn.decoding.found import Found
from tfattn.decoding.loop import advance, begin, decode
from tfattn.decoding.rules.base import check_room
from tfattn.decoding.state import take_rows

__all__ = ["NothingLeftError", "Progress", "Run"]


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
    """What a run is compiled for: another key is another compiled function."""

    forms: tuple[Form, ...]  # of the search, and of each of its rules
    settings: Settings

    def made(self, tables: tuple[dict[str, Tensor], ...]) -> Any:
        """The search, with its tensors, its settings, and rules that have theirs."""
        pairs, settings = zip(self.forms, tables, strict=True), self.settings._asdict()
        search, *rules = (form.filled(table, **settings) for form, table in pairs)
        search.rules = tuple(rules)
        return search


class Progress(NamedTuple):
    """How far a search has come."""

    position: Tensor  # scalar int32, how many tokens each open row has
    found: Found
    state: Any


class Run:
    """A search with everything that it is given, checked.

    Args:
        search: a `tfattn.decoding.Search`.
        step, state, batch_size, max_length, ids, return_state: see there.
    Attributes:
        length: the greatest `max_length`.
    """

    def __init__(
        self,
        search: Any,
        step: Step,
        state: Any,
        batch_size: int | Tensor,
        max_length: int | Sequence[int],
        ids: Ids,
        return_state: bool = False,
    ):
        who = type(search).__name__
        if not callable(step):
            _checks.fail(who, "step", "be callable, see `tfattn.decoding`", step)
        if not ops.is_tensor(batch_size):
            _checks.positive_int(who, "batch_size", batch_size)
        limits = checked_limits(who, max_length, batch_size)
        settings = checked_settings(who, ids, return_state)
        _check_rules(search, batch_size, limits, ids)
        self.search, self.step, self.length = search, step, int(np.max(limits))
        forms = tuple(map(Form.of, (search, *search.rules)))
        self.key = Key(forms, settings)
        self.tables = tuple(each.arrays() for each in (search, *search.rules))
        first = ops.full((batch_size, 1), ids.begin_id, dtype="int32")
        rest = ops.full((batch_size, self.length), ids.padding_id, dtype="int32")
        tokens = ops.concatenate([first, rest], axis=1)
        limits = ops.convert_to_tensor(limits, dtype="int32")
        limits = ops.broadcast_to(limits, ops.shape(tokens)[:1])
        self.state = checked_state(who, state, tokens.shape[0], self.length)
        self.start = Start(tokens, limits, search.start(batch_size, self.length))

    def whole(self) -> dict[str, Any]:
        """The results by name; with `return_state`, the state of their rows is among them."""
        results, seen = compiled(_run, self.step, self.key)(self.start, self.state, self.tables)
        self.check(seen)
        return results

    def begin(self, most: int) -> Progress:
        """The search after its first steps, `most` of them."""
        first = compiled(_begin, self.step, self.key)
        return self._told(*first(self.start, self.state, self.tables, ops.convert_to_tensor(most)))

    def go_on(self, progress: Progress, most: int) -> Progress:
        """The search after further steps, `most` of them."""
        further = compiled(_go_on, self.step, self.key)
        return self._told(*further(progress, self.tables, ops.convert_to_tensor(most)))

    def alive(self, found: Found) -> Tensor:
        """bool `(R,)`, which rows may still lead to a result."""
        return self.key.made(self.tables).alive(found)

    def end(self, progress: Progress) -> dict[str, Any]:
        """The results by name of a search that is done."""
        return self.key.made(self.tables).results(progress.found)[0]

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
        for rule in self.search.rules:
            rule.check_vocabulary(int(seen["vocabulary_size"]))
        number = "score tokens by numbers, and not by NaN, which comes from NaN in its weights;"
        for name, argument, value, expected, has in (
            ("broken", "step", self.step, number, "has NaN"),
            ("stuck", "rules", self.search.rules, "leave each row a token to write;", "has none"),
        ):
            places = np.flatnonzero(to_numpy(seen[name]))
            if value and len(places):
                written = int(to_numpy(seen["written"])[places[0]])
                after = f"after {written} tokens" if written else "to begin with"
                raise NothingLeftError(
                    f"{type(self.search).__name__}: `{argument}` must {expected}",
                    int(places[0]),
                    f"{has} {after}. Received: {argument}={value!r}",
                )


def _check_rules(
    search: Any, batch_size: int | Tensor, limits: np.integer | np.ndarray, ids: Ids
) -> None:
    """Raises where a rule has rows for others than these, or no room for what it asks for."""
    who = type(search).__name__
    for rule in search.rules:
        rows = batch_size
        if ops.is_tensor(batch_size):
            rows = len(limits) if np.ndim(limits) else rule.num_rows
        if rule.num_rows not in (None, rows):
            expected = f"have a row for each sentence, `batch_size`={rows} of them"
            _checks.fail(who, "rules", expected, rule)
        check_room(who, rule, limits, ids)


def _is_known(tensor: Tensor) -> bool:
    """Whether a tensor has numbers, and is not that of a function that is being compiled."""
    try:
        ops.convert_to_numpy(tensor)
    except Exception:  # each backend has its own
        return False
    return True


def _run(
    step: Step, key: Key, start: Start, state: Any, tables: tuple[dict[str, Tensor], ...]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    search = key.made(tables)
    found, state, size = decode(step, search, start, state)
    results, rows = search.results(found)
    if search.return_state:
        results["state"] = keras.tree.map_structure(
            lambda leaf: take_rows(leaf, rows) if ops.is_tensor(leaf) else leaf, state
        )
    return results, _seen(search, found, size)


def _begin(
    step: Step,
    key: Key,
    start: Start,
    state: Any,
    tables: tuple[dict[str, Tensor], ...],
    most: Tensor,
) -> tuple[Progress, dict[str, Tensor]]:
    search = key.made(tables)
    found, position = begin(search, start), ops.zeros((), "int32")
    *progress, size = advance(step, search, position, found, state, is_first=True, most=most)
    progress = Progress(*progress)
    return progress, _seen(search, progress.found, size)


def _go_on(
    step: Step, key: Key, progress: Progress, tables: tuple[dict[str, Tensor], ...], most: Tensor
) -> tuple[Progress, dict[str, Tensor]]:
    search = key.made(tables)
    *progress, size = advance(step, search, *progress, is_first=False, most=most)
    progress = Progress(*progress)
    return progress, _seen(search, progress.found, size)


def _seen(search: Any, found: Found, size: int | Tensor) -> dict[str, Tensor]:
    """What `Run.check` looks at: the vocabulary's size, and which sentences had no token where."""
    written = ops.sum(ops.cast(found.tokens[:, 1:] != search.padding_id, "int32"), axis=1)
    return {
        "vocabulary_size": size,
        "stuck": search.stuck(found),
        "broken": found.broken[:: search.width],
        "written": ops.max(ops.reshape(written, (-1, search.width)), axis=1),
    }
