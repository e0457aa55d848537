"""The base of all searches: options, a run, and hooks for choosing tokens."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.configurable import Configurable
from tfattn.decoding.rules.base import Ids, Rule
from tfattn.decoding.run import Run
from tfattn.decoding.search_state import SearchState


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
        run = Run(self, step, state, batch_size, max_length, ids, return_state)
        return self.answer(run.results(), batch_size, run.length)

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
        _checks.positive_int(type(self).__name__, "steps", steps)
        run = Run(self, step, state, 1, max_length, Ids(begin_id, end_id, padding_id))
        return self._streamed(run, int(steps))

    def _streamed(self, run: Run, steps: int) -> Iterator[int]:
        """The tokens of `stream`."""
        return run.final_tokens(steps)

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
