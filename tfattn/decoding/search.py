"""The base of all searches: an object with options, its call and its stream."""

import copy
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.compiling import compiled
from tfattn.decoding.configurable import Configurable, Form
from tfattn.decoding.loop import Progress, SearchState, advance, paths_of_pasts
from tfattn.decoding.rules.base import Ids, Rule, check_required_length


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


class Search(Configurable):
    """A search: an object with options, called with a step. A subclass defines `choose`.

    The loop is compiled once for a step function, the options that are not numbers, and the shapes
    of the state; a second call with the same shapes traces nothing. On TensorFlow, the loop drops
    done rows once they are a quarter of those that it carries (not with `jit_compile`, nor inside a
    `tf.function` of the caller, which XLA might compile). The default ids are those of
    `tfattn.data.Vocabulary`.

    Args:
        rules: rules of `tfattn.rules`, in the order in which they change the scores.
        jit_compile: whether XLA compiles the loop on TensorFlow: some seconds for each new shape,
            after which a call takes about half as long. (`translate` pads to few shapes.) JAX
            always does, PyTorch never.
    Call arguments:
        step: `step(tokens, position, state) -> (logits, state)`, see `tfattn.decoding`; such as
            `model.step` of a `Transformer`.
        state: the first state of the step, such as `model.encode(source, max_length)`.
        batch_size: positive int or scalar integer tensor: the number B of rows to decode.
        max_length: positive int, the most tokens to write, the end token included; or integers
            `(B,)`, one per row.
        begin_id, end_id, padding_id: ints of at least 0.
        return_state: whether to return the state too, of each row at its end.
    Returns:
        int32 `(B, L)`, L the greatest `max_length`: the tokens after the begin token, up to the end
        token (included), then padding. With `return_state`, `(tokens, state)`.
    Raises:
        ValueError: `rules` contains an object that is not a rule, or a rule for beams only where
            there are none; `jit_compile` is not a bool; when called: `step` is not callable;
            `max_length` or `batch_size` is not a positive int; an id is below 0; `return_state` is
            not a bool; the state does not have `batch_size` rows, or a `Past` has fewer than
            `max_length` positions; a rule does not fit the vocabulary or the batch; the rules leave
            a row no token to write.
    Attributes:
        tensors, not_compiled: names of attributes, see `Rule.tensors`. A new value of an attribute
            in `tensors` compiles nothing new; only `start` reads attributes in `not_compiled`.
        width: rows of a sentence after the first step; before it a sentence has one.
        uses_log_probs: whether `choose` gets log-probabilities, to sum, instead of logits.
        is_final_at_end: whether no token is final before the last step.

    Within the loop a search also has `begin_id`, `end_id`, `padding_id` and `return_state`, and the
    attributes of `tensors` are tensors.

    Example: your own search, which chooses the second-best token.
        >>> class SecondBest(tfattn.decoding.Search):
        ...     def choose(self, logits, position, found, width):
        ...         return keras.ops.top_k(logits, 2)[1][:, 1], None, found.extra
        >>> def step(tokens, position, state):
        ...     return -keras.ops.arange(8.0) + keras.ops.zeros_like(tokens[:, :1], "float32"), ()
        >>> print(np.asarray(SecondBest()(step, (), batch_size=1, max_length=3)))
        [[2 2 2]]
    """

    not_compiled: tuple[str, ...] = ("rules",)
    width: int = 1
    uses_log_probs: bool = False
    is_final_at_end: bool = False
    begin_id: int
    end_id: int
    padding_id: int
    return_state: bool

    def __init__(self, rules: Sequence[Rule] = (), jit_compile: bool = False):
        who = type(self).__name__
        if not isinstance(rules, list | tuple):
            _checks.fail(who, "rules", "be a sequence of rules of `tfattn.rules`", rules)
        for rule in rules:
            if not isinstance(rule, Rule):
                _checks.fail(who, "rules", "hold rules of `tfattn.rules`", rule)
            if rule.beams_only and not self.uses_log_probs:
                _checks.fail(who, "rules", "hold no rule for `BeamSearch` alone", rule)
        self.rules = tuple(rules)
        self.jit_compile = _checks.boolean(who, "jit_compile", jit_compile)

    def __call__(
        self,
        step: Step,
        state: Any,
        batch_size: int | Tensor,
        max_length: int | Sequence[int] | np.ndarray,
        begin_id: int = 2,
        end_id: int = 3,
        padding_id: int = 0,
        return_state: bool = False,
    ) -> Any:
        ids = Ids(begin_id, end_id, padding_id)
        search = self._for_call(step, batch_size, max_length, ids, return_state)
        begun = search._begun(state, batch_size, max_length)
        progress, results = next(search._advanced(step, begun))
        if return_state:
            results["state"] = progress.state
        return self.answer(results, batch_size, int(np.max(max_length)))

    def stream(
        self,
        step: Step,
        state: Any,
        max_length: int | Sequence[int] | np.ndarray,
        begin_id: int = 2,
        end_id: int = 3,
        padding_id: int = 0,
        steps: int = 4,
    ) -> Iterator[int]:
        """The tokens of one sentence, each as soon as it is final.

        The tokens are those of a call, up to the end token (included). In greedy search
        and sampling all written tokens are final; in beam search, the common prefix of the beams.
        The search is compiled as two functions, for its beginning and its continuation; further
        calls compile nothing.

        Args:
            step, state, max_length, begin_id, end_id, padding_id: see the call. `state` has one
                row.
            steps: positive int, number of steps between two checks for final tokens. Each costs
                about as much as a step of a small model.
        Returns:
            An iterator of ints.
        Raises:
            ValueError: as in a call; during iteration: the rules leave no token to write.
        Example: a step that counts up.
            >>> def step(tokens, position, state):
            ...     return keras.ops.one_hot(keras.ops.take(tokens, position, axis=1) + 1, 8), state
            >>> list(GreedySearch().stream(step, (), max_length=6, end_id=5))
            [3, 4, 5]
        """
        steps = _checks.positive_int(type(self).__name__, "steps", steps)
        ids = Ids(begin_id, end_id, padding_id)
        search = self._for_call(step, 1, max_length, ids)
        begun = search._begun(state, 1, max_length)
        return search._final_tokens(step, begun, None if self.is_final_at_end else steps)

    def _for_call(
        self,
        step: Step,
        batch_size: int | Tensor,
        max_length: int | Sequence[int] | np.ndarray,
        ids: Ids,
        return_state: bool = False,
    ) -> Any:
        """The search with the checked ids of a call, and so its rules."""
        who = type(self).__name__
        if not callable(step):
            _checks.fail(who, "step", "be callable, see `tfattn.decoding`", step)
        if not ops.is_tensor(batch_size):
            _checks.positive_int(who, "batch_size", batch_size)
        limits = _checked_limits(who, max_length, batch_size)
        for name, token in ids._asdict().items():
            _checks.non_negative_int(who, name, token)
        _checks.boolean(who, "return_state", return_state)
        _check_rules(who, self.rules, batch_size, limits, ids)
        settings = {name: int(token) for name, token in ids._asdict().items()}
        search, *rules = (copy.copy(each) for each in (self, *self.rules))
        for each in (search, *rules):
            vars(each).update(settings)
        search.rules, search.return_state = tuple(rules), return_state
        search.drop_done_rows = keras.backend.backend() == "tensorflow" and not self.jit_compile
        if search.drop_done_rows:
            import tensorflow as tf

            # A shrinking batch has no fixed shape, which XLA and exports need: inside a function of
            # the caller no row is dropped.
            search.drop_done_rows = tf.executing_eagerly()
        return search

    def _begun(
        self, state: Any, batch_size: int | Tensor, max_length: int | Sequence[int] | np.ndarray
    ) -> Progress:
        """The progress before the first step."""
        length = int(np.max(max_length))
        row = np.full(1 + length, self.padding_id, "int32")
        row[0] = self.begin_id
        tokens = ops.broadcast_to(ops.convert_to_tensor(row), (batch_size, 1 + length))
        limits = ops.convert_to_tensor(np.asarray(max_length, "int32"))
        limits = ops.broadcast_to(limits, (batch_size,))
        state = _checked_state(type(self).__name__, state, tokens.shape[0], length)
        is_open = ops.zeros((batch_size,), "bool")
        extra = self.start(batch_size, length)
        found = SearchState(tokens, is_open, is_open, limits, is_open, is_open, extra)
        rules = [Form.of(rule).filled(rule.arrays()) for rule in self.rules]
        found = found._replace(rule_states=tuple(rule.start(tokens, limits) for rule in rules))
        if any(rule.state_key is not None for rule in self.rules):
            found = found._replace(at_end=ops.zeros((batch_size,), "float32"))
        return Progress(ops.zeros((), "int32"), found, state)

    def _advanced(
        self, step: Step, progress: Progress, steps: int | None = None
    ) -> Iterator[tuple[Progress, dict[str, Any]]]:
        """The progress and the results after every `steps` steps, or once, at the end."""
        objects = self, *self.rules
        forms, tensors = zip(*((Form.of(each), each.arrays()) for each in objects), strict=True)
        max_steps = None if steps is None else ops.convert_to_tensor(steps)
        # A compiled function may return numbers and strings as tensors: restore the originals.
        given = {
            path: leaf
            for path, leaf in keras.tree.flatten_with_path(progress.state)
            if isinstance(leaf, int | float | str)
        }
        for call in itertools.count():
            if call < 2:  # the beginning, and all that continues it
                run = compiled(advance, step, (forms, call == 0), self.jit_compile)
            progress, results, report = run(progress, tensors, max_steps)
            self._check(step, progress.found, *report)
            leaves = keras.tree.flatten_with_path(progress.state)
            leaves = [given.get(path, leaf) for path, leaf in leaves]
            state = keras.tree.pack_sequence_as(progress.state, leaves)
            progress = progress._replace(state=state)
            yield progress, results

    def _check(self, step: Step, found: SearchState, size: Any, stuck: Any) -> None:
        """Raises a ValueError if the rules name tokens outside of the vocabulary or leave a row no
        token, or if scores are NaN; inside a function that the caller compiles it cannot.
        """
        try:
            has_nan, stuck = ops.convert_to_numpy(found.has_nan), ops.convert_to_numpy(stuck)
        except (NotImplementedError, TypeError):  # a symbolic tensor of TensorFlow, or of JAX
            return
        for rule in self.rules:
            rule.check_vocabulary(int(size))
        no_nan = "return logits without NaN and +inf: check the weights;"
        for rows, argument, value, expected, has in (
            (has_nan[:: self.width], "step", step, no_nan, "has them"),
            (stuck, "rules", self.rules, "leave each row a token to write;", "has none"),
        ):
            if value and np.any(rows):
                index = int(np.argmax(rows))
                tokens = ops.convert_to_numpy(found.tokens)[:, 1:] != self.padding_id
                written = np.max(tokens.sum(axis=1).reshape(-1, self.width)[index])
                after = f"after {written} tokens" if written else "at the first step"
                message = f"{type(self).__name__}: `{argument}` must {expected}"
                raise RowError(message, index, f"{has} {after}. Received: {argument}={value!r}")

    def _final_tokens(self, step: Step, progress: Progress, steps: int | None) -> Iterator[int]:
        """Each token of one sentence, once no further step can change it."""
        num_given = 0
        for reached, results in self._advanced(step, progress, steps):
            is_done, tokens = self._final_prefix(reached, results)
            yield from tokens[num_given:]
            if is_done:
                return
            num_given = max(num_given, len(tokens))

    def _final_prefix(self, progress: Progress, results: dict[str, Any]) -> tuple[bool, list[int]]:
        """(Whether the search is done, the final tokens: the common prefix of all live rows.)"""
        numpy, found, position = ops.convert_to_numpy, progress.found, int(progress.position)
        is_done = position + 1 >= found.tokens.shape[1] or bool(numpy(found.done).all())
        if is_done:
            rows = numpy(results["tokens"])[:1]
        else:
            rows = numpy(found.tokens)[numpy(self.alive(found)), 1 : position + 1]
        # An end token that is also the padding token is no padding.
        is_token = (rows != self.padding_id) * np.arange(1, 1 + rows.shape[1])
        ends = np.max(is_token, axis=1, initial=0) + (self.padding_id == self.end_id)
        written = [row[:end].tolist() for row, end in zip(rows, ends, strict=True)]
        return is_done, os.path.commonprefix(written)

    def of_sentences(self, places: Sequence[int]) -> "Search":
        """The search for some of the sentences, in that order: its rules with those rows."""
        taken = copy.copy(self)
        taken.rules = tuple(rule.take(places) for rule in self.rules)
        return taken

    def in_batches(self) -> "Search":
        """The search for several batches in order; `Sampling` draws all from one seed."""
        return self

    def answer(self, results: dict[str, Any], batch_size: int | Tensor, length: int) -> Any:
        """The return value of a call, from the results by name."""
        # Inside a larger function the static shape of the compiled function's result is lost.
        tokens = ops.reshape(results["tokens"], (batch_size, length))
        return (tokens, results["state"]) if "state" in results else tokens

    def start(self, batch_size: int | Tensor, length: int) -> dict[str, Tensor]:
        """The search's own tensors `(B, ...)` by name before the first step, by default none.

        This method runs outside of the compiled loop.
        """
        return {}

    def choose(
        self, logits: Tensor, position: Tensor, found: SearchState, width: int
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """The next token of each row, the row that it extends, and the search's own tensors.

        Args:
            logits: float `(R, V)`.
            position: scalar int32, the last decided position.
            found: the state of the search; `found.extra` has its own tensors.
            width: present rows of a sentence.
        Returns:
            (integers `(R,)`, int32 `(R,)` or None if each row extends itself, dict).
        """
        raise NotImplementedError

    def done(self, found: SearchState) -> Tensor:
        """`found.done`. By default a row is done when it has ended."""
        return found.ended

    def stuck(self, found: SearchState) -> Tensor:
        """bool `(B,)`, whether the rules left a sentence no token."""
        return found.stuck

    def ends(self, tokens: Tensor, position: Tensor, found: SearchState) -> Tensor:
        """bool `(R,)`, whether rows end with these tokens at `position + 1`.

        At its limit a row ends without an end token, so that longer rows do not change it. An end
        token within a prompt does not end the row.
        """
        ends = tokens == self.end_id
        if ops.is_tensor(found.prompt_continues):
            ends = ops.logical_and(ends, ops.logical_not(found.prompt_continues))
        return ops.logical_or(ends, position + 1 >= found.limits)

    def alive(self, found: SearchState) -> Tensor:
        """bool `(R,)`, whether each row exists. By default all do."""
        return ops.ones_like(found.done)

    def results(self, found: SearchState) -> tuple[dict[str, Any], Tensor | None]:
        """(Tensors to return by name, the rows of the results or None for all) after the last step.

        By default the tokens of each row.
        """
        return {"tokens": found.tokens[:, 1:]}, None


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
    who: str,
    rules: Sequence[Rule],
    batch_size: int | Tensor,
    limits: np.integer | np.ndarray,
    ids: Ids,
) -> None:
    """Raises if a rule has a wrong number of rows, or needs a greater `max_length`."""
    rows = np.size(limits) if np.ndim(limits) else batch_size
    for rule in rules:
        if not ops.is_tensor(rows) and rule.num_rows not in (None, rows):
            expected = f"have a row for each sentence, with `batch_size`={rows}"
            _checks.fail(who, "rules", expected, rule)
        check_required_length(who, rule, limits, ids)
