"""Greedy search: the best-scored token at every step."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from tfattn._types import Step, Tensor
from tfattn.decoding.arguments import Ids
from tfattn.decoding.best import best_token
from tfattn.decoding.plan import Plan, planned
from tfattn.decoding.rules.base import Rule
from tfattn.decoding.search import Found, Search

__all__ = ["greedy_search", "plan_greedily"]


def greedy_search(
    step: Step,
    state: Any,
    batch_size: int | Tensor,
    max_length: int | Sequence[int],
    begin_id: int = 2,
    end_id: int = 3,
    padding_id: int = 0,
    return_state: bool = False,
    rules: Sequence[Rule] = (),
) -> Tensor | tuple[Tensor, Any]:
    """Writes the token with the highest score at every step, until each row has ended.

    The loop is compiled once for a step function and the shapes of its state; a second call with
    the same shapes traces nothing. On TensorFlow, rows that have ended are dropped from the loop
    once they are a quarter of all rows (not inside a `tf.function` of the caller, which XLA might
    compile). The default ids are those of `tfattn.data.Vocabulary`.

    Args:
        step: `step(tokens, position, state) -> (logits, state)`, see `tfattn.decoding`; such as
            `model.step` of a `Transformer`.
        state: what the step needs besides the tokens; such as `model.encode(source, max_length)`.
        batch_size: positive int or scalar integer tensor: the number B of rows to decode.
        max_length: positive int, the most tokens to write, the end token included; or integers
            `(B,)`, one per row.
        begin_id, end_id, padding_id: ints of at least 0.
        return_state: whether to return the state too, with each row as it was when the row ended.
        rules: rules of `tfattn.rules`, in their order: what may be written, and what had better
            not.
    Returns:
        int32 `(B, L)`, L the greatest `max_length`: the tokens after the begin token, up to the end
        token (included), then padding. With `return_state`, `(tokens, state)`.
    Raises:
        ValueError: `step` is not callable; `max_length` or `batch_size` is not a positive int; an
            id is below 0; `return_state` is not a bool; the state does not have `batch_size` rows,
            or a `Past` has fewer than `max_length` positions; `rules` holds anything but rules, or
            one that does not fit the vocabulary or the batch; they leave a row no token to write.
    Example: a step that counts up.
        >>> def step(tokens, position, state):
        ...     return keras.ops.one_hot(keras.ops.take(tokens, position, axis=1) + 1, 8), state
        >>> print(np.asarray(greedy_search(step, (), batch_size=1, max_length=6, end_id=5)))
        [[3 4 5 0 0 0]]
    """
    plan = plan_greedily(
        step=step,
        state=state,
        batch_size=batch_size,
        max_length=max_length,
        begin_id=begin_id,
        end_id=end_id,
        padding_id=padding_id,
        return_state=return_state,
        rules=rules,
    )
    results, state = plan.run()
    # Inside of a larger function the compiled one has lost its known shape.
    tokens = ops.reshape(results["tokens"], (batch_size, plan.start.tokens.shape[1] - 1))
    return (tokens, state) if return_state else tokens


def plan_greedily(
    step: Step,
    state: Any,
    batch_size: int | Tensor,
    max_length: int | Sequence[int],
    begin_id: int = 2,
    end_id: int = 3,
    padding_id: int = 0,
    return_state: bool = False,
    rules: Sequence[Rule] = (),
) -> Plan:
    """What `greedy_search` runs."""
    return planned(
        "greedy_search",
        _Greedy,
        {},
        step=step,
        state=state,
        batch_size=batch_size,
        max_length=max_length,
        ids=Ids(begin_id, end_id, padding_id),
        return_state=return_state,
        rules=rules,
    )


class _Greedy(Search):
    def choose(
        self, logits: Tensor, position: Tensor, found: Found, width: int
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        return best_token(logits), None, {}
