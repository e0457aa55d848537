"""A run of a search, to its end or a few steps at a time."""

from collections.abc import Callable, Sequence
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
from tfattn.decoding.loop import advance, begin, decode
from tfattn.decoding.rules.base import check_required_length
from tfattn.decoding.search_state import SearchState
from tfattn.decoding.state import take_rows


class RowError(ValueError):
    """A row has no allowed token, or NaN among its scores.

    Args:
        before, after: the message around the name of the row.
        index: index of the row in its batch.
        row: name of the row.
    """

    def __init__(self, before: str, index: int, after: str, row: str | None = None):
        super().__init__(f"{before} {row or f'row {index}'} {after}")
        self.before, self.index, self.after = before, index, after

    def of_row(self, row: str) -> "RowError":
        """The error with another name for the row."""
        return RowError(self.before, self.index, self.after, row)


class Key(NamedTuple):
    """The key of a compiled function."""

    forms: tuple[Form, ...]  # the forms of the search and of its rules
    settings: Settings

    def search(self, tables: tuple[dict[str, Tensor], ...]) -> Any:
        """The search and its rules with their tensors and settings."""
        pairs, settings = zip(self.forms, tables, strict=True), self.settings._asdict()
        search, *rules = (form.filled(table, **settings) for form, table in pairs)
        search.rules = tuple(rules)
        return search


class Progress(NamedTuple):
    """The state of an interrupted search."""

    position: Any  # scalar int32, number of tokens of each open row
    found: SearchState
    state: Any


class Run:
    """A search with the checked arguments of a call.

    Args:
        search: a `tfattn.decoding.Search`; the other arguments are those of its call.
    Attributes:
        length: the greatest `max_length`.
    """

    def __init__(
        self,
        search: Any,
        step: Step,
        state: Any,
        batch_size: int | Tensor,
        max_length: int | Sequence[int] | np.ndarray,
        ids: Ids,
        return_state: bool = False,
    ):
        who = type(search).__name__
        if not callable(step):
            _checks.fail(who, "step", "be callable, see `tfattn.decoding`", step)
        if not ops.is_tensor(batch_size):
            _checks.positive_int(who, "batch_size", batch_size)
        limits = checked_limits(who, max_length, batch_size)
        settings = checked_settings(who, ids, return_state, search.jit_compile)
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

    def results(self) -> dict[str, Any]:
        """The results by name, including the state with `return_state`."""
        results, report = self._compiled(_run)(self.start, self.state, self.tables)
        self.check(report)
        return results

    def begin(self, max_steps: int) -> Progress:
        """The search after its first `max_steps` steps."""
        steps = ops.convert_to_tensor(max_steps)
        return self._checked(*self._compiled(_begin)(self.start, self.state, self.tables, steps))

    def resume(self, progress: Progress, max_steps: int) -> Progress:
        """The search after `max_steps` further steps."""
        further = self._compiled(_resume)
        return self._checked(*further(progress, self.tables, ops.convert_to_tensor(max_steps)))

    def alive(self, found: SearchState) -> Tensor:
        """bool `(R,)`, whether each row may still lead to a result."""
        return self.key.search(self.tables).alive(found)

    def end(self, progress: Progress) -> dict[str, Any]:
        """The results by name after the last step."""
        return self.key.search(self.tables).results(progress.found)[0]

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return compiled(function, self.step, self.key, self.search.jit_compile)

    def _checked(self, progress: Progress, report: dict[str, Tensor]) -> Progress:
        self.check(report)
        # A compiled function may return numbers and strings as tensors: restore the originals.
        given = dict(keras.tree.flatten_with_path(self.state))
        leaves = [
            given[path] if isinstance(given.get(path), int | float | str) else leaf
            for path, leaf in keras.tree.flatten_with_path(progress.state)
        ]
        return progress._replace(state=keras.tree.pack_sequence_as(progress.state, leaves))

    def check(self, report: dict[str, Any]) -> None:
        """Raises a ValueError if the rules name tokens outside of the vocabulary or leave a row no
        token, or if scores are NaN; inside a function that the caller compiles it cannot.
        """
        if not _is_known(report["stuck"]):
            return
        to_numpy = ops.convert_to_numpy
        for rule in self.search.rules:
            rule.check_vocabulary(int(report["vocabulary_size"]))
        no_nan = "return logits without NaN and +inf: check the weights;"
        for name, argument, value, expected, has in (
            ("has_nan", "step", self.step, no_nan, "has them"),
            ("stuck", "rules", self.search.rules, "leave each row a token to write;", "has none"),
        ):
            rows = np.flatnonzero(to_numpy(report[name]))
            if value and len(rows):
                written = int(to_numpy(report["written"])[rows[0]])
                after = f"after {written} tokens" if written else "at the first step"
                raise RowError(
                    f"{type(self.search).__name__}: `{argument}` must {expected}",
                    int(rows[0]),
                    f"{has} {after}. Received: {argument}={value!r}",
                )


def _check_rules(
    search: Any, batch_size: int | Tensor, limits: np.integer | np.ndarray, ids: Ids
) -> None:
    """Raises if a rule has a wrong number of rows, or needs a greater `max_length`."""
    who = type(search).__name__
    for rule in search.rules:
        rows = batch_size
        if ops.is_tensor(batch_size):
            rows = np.size(limits) if np.ndim(limits) else rule.num_rows
        if rule.num_rows not in (None, rows):
            expected = f"have a row for each sentence, with `batch_size`={rows}"
            _checks.fail(who, "rules", expected, rule)
        check_required_length(who, rule, limits, ids)


def _is_known(tensor: Tensor) -> bool:
    """Whether a tensor has values, and is not symbolic."""
    try:
        ops.convert_to_numpy(tensor)
    except (NotImplementedError, TypeError):  # of TensorFlow, and of JAX
        return False
    return True


def _run(
    step: Step, key: Key, start: Start, state: Any, tables: tuple[dict[str, Tensor], ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    search = key.search(tables)
    found, state, size = decode(step, search, start, state)
    results, rows = search.results(found)
    if search.return_state:
        results["state"] = keras.tree.map_structure(
            lambda leaf: take_rows(leaf, rows) if ops.is_tensor(leaf) else leaf, state
        )
    return results, _report(search, found, size)


def _begin(
    step: Step,
    key: Key,
    start: Start,
    state: Any,
    tables: tuple[dict[str, Tensor], ...],
    max_steps: Tensor,
) -> tuple[Progress, dict[str, Tensor]]:
    search = key.search(tables)
    found, position = begin(search, start), ops.zeros((), "int32")
    position, found, state, size = advance(
        step, search, position, found, state, is_first=True, max_steps=max_steps
    )
    return Progress(position, found, state), _report(search, found, size)


def _resume(
    step: Step,
    key: Key,
    progress: Progress,
    tables: tuple[dict[str, Tensor], ...],
    max_steps: Tensor,
) -> tuple[Progress, dict[str, Tensor]]:
    search = key.search(tables)
    position, found, state, size = advance(
        step, search, *progress, is_first=False, max_steps=max_steps
    )
    return Progress(position, found, state), _report(search, found, size)


def _report(search: Any, found: SearchState, size: int | Tensor) -> dict[str, Tensor]:
    """The tensors that `Run.check` reads."""
    written = ops.sum(ops.cast(found.tokens[:, 1:] != search.padding_id, "int32"), axis=1)
    return {
        "vocabulary_size": size,
        "stuck": search.stuck(found),
        "has_nan": found.has_nan[:: search.width],
        "written": ops.max(ops.reshape(written, (-1, search.width)), axis=1),
    }
