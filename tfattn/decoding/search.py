"""The base of all searches: an object with options, its call and its stream; and greedy search."""

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
from tfattn.decoding.best import best_token
from tfattn.decoding.compiling import compiled
from tfattn.decoding.form import Compilable, Form
from tfattn.decoding.loop import Progress, SearchState, advance, paths_of_pasts
from tfattn.decoding.rules.base import Rule

Lengths = int | Sequence[int] | np.ndarray  # one for all rows, or one for each


class Search(Compilable):
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
        ValueError: `rules` contains an object that is not a rule; `jit_compile` is not a bool; when
            called: an argument is of another kind; the state or a rule does not have `batch_size`
            rows, or a `Past` has fewer than `max_length` positions; the rules leave a row no token
            to write; scores are NaN.
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

    not_compiled: tuple[str, ...] = ("rules", "places")
    width: int = 1
    uses_log_probs: bool = False
    is_final_at_end: bool = False
    places: Sequence[int] | None = None  # of the sentences, for error messages
    begin_id: int
    end_id: int
    padding_id: int
    return_state: bool

    def __init__(self, rules: Sequence[Rule] = (), jit_compile: bool = False):
        who = type(self).__name__
        if not isinstance(rules, list | tuple) or not all(isinstance(x, Rule) for x in rules):
            _checks.fail(who, "rules", "be a sequence of rules of `tfattn.rules`", rules)
        self.rules = tuple(rules)
        self.jit_compile = _checks.boolean(who, "jit_compile", jit_compile)

    def __call__(
        self,
        step: Step,
        state: Any,
        batch_size: int | Tensor,
        max_length: Lengths,
        begin_id: int = 2,
        end_id: int = 3,
        padding_id: int = 0,
        return_state: bool = False,
    ) -> Any:
        _checks.boolean(type(self).__name__, "return_state", return_state)
        ids = {"begin_id": begin_id, "end_id": end_id, "padding_id": padding_id}
        search = self._for_call(step, ids, return_state)
        begun = search._begun(state, batch_size, max_length)
        progress, results = next(search._advanced(step, begun))
        if return_state:
            results["state"] = progress.state
        return self.answer(results, batch_size, int(np.max(max_length)))

    def stream(
        self,
        step: Step,
        state: Any,
        max_length: Lengths,
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
        ids = {"begin_id": begin_id, "end_id": end_id, "padding_id": padding_id}
        search = self._for_call(step, ids)
        begun = search._begun(state, 1, max_length)
        return search._final_tokens(step, begun, None if self.is_final_at_end else steps)

    def _for_call(self, step: Step, ids: dict[str, int], return_state: bool = False) -> Any:
        """The search with the checked ids of a call, and so its rules."""
        who = type(self).__name__
        if not callable(step):
            _checks.fail(who, "step", "be callable, see `tfattn.decoding`", step)
        ids = {name: _checks.non_negative_int(who, name, token) for name, token in ids.items()}
        search, *rules = (copy.copy(each) for each in (self, *self.rules))
        for each in (search, *rules):
            vars(each).update(ids)
        search.rules, search.return_state = tuple(rules), return_state
        search.drop_done_rows = keras.backend.backend() == "tensorflow" and not self.jit_compile
        if search.drop_done_rows:
            import tensorflow as tf

            # A shrinking batch has no fixed shape, which XLA and exports need: inside a function of
            # the caller no row is dropped.
            search.drop_done_rows = tf.executing_eagerly()
        return search

    def _begun(self, state: Any, batch_size: int | Tensor, max_length: Lengths) -> Progress:
        """The progress before the first step."""
        limits = self._checked_limits(batch_size, max_length)
        length = int(np.max(limits))
        row = np.full(1 + length, self.padding_id, "int32")
        row[0] = self.begin_id
        tokens = ops.broadcast_to(ops.convert_to_tensor(row), (batch_size, 1 + length))
        limits = ops.broadcast_to(ops.convert_to_tensor(limits), (batch_size,))
        state = _checked_state(type(self).__name__, state, tokens.shape[0], length)
        is_open = ops.zeros((batch_size,), "bool")
        extra = self.start(batch_size, length)
        rules = [Form.of(rule).filled(rule.arrays()) for rule in self.rules]
        states = tuple(rule.start(tokens, limits) for rule in rules)
        found = SearchState(tokens, is_open, is_open, limits, is_open, is_open, extra, states)
        return Progress(ops.zeros((), "int32"), found, state)

    def _checked_limits(self, batch_size: int | Tensor, max_length: Lengths) -> np.ndarray:
        """`max_length` as an int32 scalar, or `(B,)`; checked for the rows of the rules too."""
        who, rows = type(self).__name__, None
        if not ops.is_tensor(batch_size):
            rows = _checks.positive_int(who, "batch_size", batch_size)
        limits = np.asarray(max_length)
        is_fit = limits.ndim == 0 or limits.ndim == 1 and rows in (None, len(limits))
        if limits.dtype.kind not in "iu" or not is_fit or np.min(limits) < 1:
            expected = f"be a positive integer, or one for each row, with `batch_size`={rows}"
            _checks.fail(who, "max_length", expected, max_length)
        for rule in self.rules:
            if rows is not None and rule.num_rows not in (None, rows):
                expected = f"have a row for each sentence, with `batch_size`={rows}"
                _checks.fail(who, "rules", expected, rule)
        return limits.astype("int32")

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
            progress, results = run(progress, tensors, max_steps)
            self._check(step, progress.found, results.pop("stuck"))
            leaves = keras.tree.flatten_with_path(progress.state)
            leaves = [given.get(path, leaf) for path, leaf in leaves]
            state = keras.tree.pack_sequence_as(progress.state, leaves)
            progress = progress._replace(state=state)
            yield progress, results

    def _check(self, step: Step, found: SearchState, stuck: Tensor) -> None:
        """Raises a ValueError if the rules leave a row no token, or if scores are NaN; inside a
        function that the caller compiles it cannot.
        """
        try:
            has_nan, stuck = ops.convert_to_numpy(found.has_nan), ops.convert_to_numpy(stuck)
        except (NotImplementedError, TypeError):  # a symbolic tensor of TensorFlow, or of JAX
            return
        no_nan = "return logits without NaN and +inf: check the weights; {} has them"
        no_token = "leave each row a token to write; {} has none"
        for rows, argument, value, expected in (
            (has_nan[:: self.width], "step", step, no_nan),
            (stuck, "rules", self.rules, no_token),
        ):
            if value and np.any(rows):
                index = int(np.argmax(rows))
                tokens = ops.convert_to_numpy(found.tokens)[:, 1:] != self.padding_id
                written = np.max(tokens.sum(axis=1).reshape(-1, self.width)[index])
                after = f"after {written} tokens" if written else "at the first step"
                row = f"sentences[{self.places[index]}]" if self.places else f"row {index}"
                expected = f"{expected.format(row)} {after}"
                _checks.fail(type(self).__name__, argument, expected, value)

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
        taken.places = places
        taken.rules = tuple(rule.take(places) for rule in self.rules)
        return taken

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

    def alive(self, found: SearchState) -> Tensor:
        """bool `(R,)`, whether each row exists. By default all do."""
        return ops.ones_like(found.done)

    def results(self, found: SearchState) -> tuple[dict[str, Any], Tensor | None]:
        """(Tensors to return by name, the rows of the results or None for all) after the last step.

        By default the tokens of each row, and "stuck", bool `(B,)`: whether the rules left a
        sentence no token.
        """
        return {"tokens": found.tokens[:, 1:], "stuck": found.stuck}, None


@keras.saving.register_keras_serializable("tfattn")
class GreedySearch(Search):
    """Writes the token with the highest score at every step, until each row has ended.

    Args:
        rules, jit_compile: see `tfattn.decoding.Search`, also for a call's arguments, result, and
            all errors.
    Example: a step that counts up.
        >>> def step(tokens, position, state):
        ...     return keras.ops.one_hot(keras.ops.take(tokens, position, axis=1) + 1, 8), state
        >>> print(np.asarray(GreedySearch()(step, (), batch_size=1, max_length=6, end_id=5)))
        [[3 4 5 0 0 0]]
    """

    def choose(
        self, logits: Tensor, position: Tensor, found: SearchState, width: int
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        return best_token(logits), None, found.extra


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
