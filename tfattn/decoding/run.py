"""A run of a search, to its end or a few steps at a time."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.compiling import compiled
from tfattn.decoding.configurable import Form
from tfattn.decoding.loop import advance, begin
from tfattn.decoding.rules.base import Ids, check_required_length
from tfattn.decoding.search_state import SearchState
from tfattn.decoding.state import paths_of_pasts, take_rows


class RowError(ValueError):
    """A row has no allowed token, or NaN among its scores; `before` and `after` are the message
    around its name.
    """

    def __init__(self, before: str, index: int, after: str, row: str | None = None):
        super().__init__(f"{before} {row or f'row {index}'} {after}")
        self.before, self.index, self.after = before, index, after

    def of_row(self, row: str) -> "RowError":
        """The error with another name for the row."""
        return RowError(self.before, self.index, self.after, row)


class Settings(NamedTuple):
    """The options of a run that are part of the compiled function."""

    begin_id: int
    end_id: int
    padding_id: int
    return_state: bool
    drop_done_rows: bool


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
    """A `Search` with the checked arguments of a call; `length` is the greatest `max_length`."""

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
        limits = _checked_limits(who, max_length, batch_size)
        settings = _checked_settings(who, ids, return_state, search.jit_compile)
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
        self.state = _checked_state(who, state, tokens.shape[0], self.length)
        extra = search.start(batch_size, self.length)
        self.found = begin(self.key.search(self.tables), tokens, limits, extra)

    def results(self) -> dict[str, Any]:
        """The results by name, including the state with `return_state`."""
        run = compiled(_run, self.step, self.key, self.search.jit_compile)
        results, report = run(self.found, self.state, self.tables)
        self.check(report)
        return results

    def final_tokens(self, max_steps: int) -> Iterator[int]:
        """Each token of the first row, once no further step can change it; looks for them after
        every `max_steps` steps.
        """
        progress = Progress(ops.zeros((), "int32"), self.found, self.state)
        num_given, is_first, is_done = 0, True, False
        while not is_done:
            progress = self._advanced(progress, max_steps, is_first)
            is_first = False
            is_done, tokens = self._final_prefix(progress)
            yield from tokens[num_given:]
            num_given = max(num_given, len(tokens))

    def _final_prefix(self, progress: Progress) -> tuple[bool, list[int]]:
        """(Whether the search is done, the final tokens: the common prefix of all live rows.)"""
        numpy, search = ops.convert_to_numpy, self.key.search(self.tables)
        found = progress.found
        position = int(progress.position)
        if position >= self.length or numpy(found.done).all():
            return True, self.written(numpy(search.results(found)[0]["tokens"])[0])
        rows = numpy(found.tokens)[numpy(search.alive(found)), 1 : position + 1]
        common = []
        for tokens in zip(*map(self.written, rows), strict=False):
            if len(set(tokens)) > 1:
                break
            common.append(tokens[0])
        return False, common

    def written(self, row: np.ndarray) -> list[int]:
        """A row without its padding, except for an end token that is also the padding token."""
        settings = self.key.settings
        count = np.max(np.flatnonzero(row != settings.padding_id), initial=-1) + 1
        return row[: count + (settings.padding_id == settings.end_id)].tolist()

    def _advanced(self, progress: Progress, max_steps: int, is_first: bool) -> Progress:
        """The search after `max_steps` further steps."""
        run = compiled(_advance, self.step, (self.key, is_first), self.search.jit_compile)
        progress, report = run(progress, self.tables, ops.convert_to_tensor(max_steps))
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


def _checked_settings(who: str, ids: Ids, return_state: bool, jit_compile: bool) -> Settings:
    """The settings of a run."""
    drop_done_rows = keras.backend.backend() == "tensorflow" and not jit_compile
    if drop_done_rows:
        import tensorflow as tf

        # A shrinking batch has no fixed shape, which XLA and exports need: inside a function of the
        # caller no row is dropped.
        drop_done_rows = tf.executing_eagerly()
    tokens = ids._asdict().items()
    ids = Ids(*(_checks.non_negative_int(who, name, token) for name, token in tokens))
    return Settings(*ids, _checks.boolean(who, "return_state", return_state), drop_done_rows)


def _checked_limits(
    who: str, max_length: int | Sequence[int] | np.ndarray, batch_size: int | Tensor
) -> np.integer | np.ndarray:
    """`max_length` as a NumPy integer, or integers `(B,)`."""
    if not isinstance(max_length, list | tuple) and np.ndim(max_length) == 0:
        return np.int32(_checks.positive_int(who, "max_length", max_length))
    try:
        limits = np.asarray(max_length)
    except ValueError:  # a ragged list
        limits = np.asarray(None)
    rows = None if ops.is_tensor(batch_size) else batch_size
    positive_ints = limits.dtype.kind in "iu" and limits.min(initial=1) >= 1
    if limits.ndim != 1 or not positive_ints or rows not in (None, len(limits)):
        expected = "be a positive integer, or one for each row"
        if rows is not None:
            expected += f", with `batch_size`={rows}"
        _checks.fail(who, "max_length", expected, max_length)
    return limits


def _checked_state(who: str, state: Any, batch_size: int | None, longest: int) -> Any:
    """The state with the backend's tensors, checked for `batch_size` rows and `longest` tokens."""
    pasts, leaves = paths_of_pasts(who, state), []
    for path, leaf in keras.tree.flatten_with_path(state):
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            leaf = ops.convert_to_tensor(leaf)
            shape = tuple(leaf.shape)
            if shape and None not in (shape[0], batch_size) and shape[0] != batch_size:
                expected = f"hold `batch_size`={batch_size} rows in each tensor"
                _checks.fail(who, "state", expected, shape)
            if path in pasts and shape[-2] is not None and shape[-2] < longest:
                expected = f"have room for `max_length`={longest} positions in each `Past`"
                _checks.fail(who, "state", expected, shape)
        leaves.append(leaf)
    return keras.tree.pack_sequence_as(state, leaves)


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
    step: Step,
    key: Key,
    found: SearchState,
    state: Any,
    tables: tuple[dict[str, Tensor], ...],
) -> tuple[dict[str, Any], dict[str, Any]]:
    search, position = key.search(tables), ops.zeros((), "int32")
    _, found, state, size = advance(step, search, position, found, state, is_first=True)
    results, rows = search.results(found)
    if search.return_state:
        results["state"] = keras.tree.map_structure(
            lambda leaf: take_rows(leaf, rows) if ops.is_tensor(leaf) else leaf, state
        )
    return results, _report(search, found, size)


def _advance(
    step: Step,
    settings: tuple[Key, bool],
    progress: Progress,
    tables: tuple[dict[str, Tensor], ...],
    max_steps: Tensor,
) -> tuple[Progress, dict[str, Tensor]]:
    key, is_first = settings
    search = key.search(tables)
    position, found, state, size = advance(step, search, *progress, is_first, max_steps)
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
