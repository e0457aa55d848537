"""Greedy search: the best-scored token at every step."""

from typing import NamedTuple

import keras
from keras import ops

from tfattn import _checks
from tfattn.decoding.compiling import compiled

__all__ = ["greedy_search"]


class _Settings(NamedTuple):
    max_length: int
    begin_id: int
    end_id: int
    padding_id: int


def greedy_search(step, state, batch_size, max_length, begin_id=2, end_id=3, padding_id=0):
    """Writes the best-scored token at every step, until each row has ended.

    The loop is compiled once for a step, its settings and the shapes of its state; a second call with tensors of the
    same shapes traces nothing. The ids are those of `tfattn.data.Vocabulary`.

    Args:
        step: `step(tokens, position, state) -> (logits, state)`, see `tfattn.decoding`; such as `Transformer.step`.
        state: what the step needs besides the tokens; such as `Transformer.encode(source)`.
        batch_size: positive int, or a scalar integer tensor: rows to decode.
        max_length: positive int, most tokens to write, the end token included.
        begin_id, end_id, padding_id: ints.
    Returns:
        int32 `(B, max_length)`: the tokens after the begin token, up to and with the end token, then padding.
    Raises:
        ValueError: `max_length` or `batch_size` is no positive int, an id is below 0.
    Example: a step that counts up.
        >>> def step(tokens, position, state):
        ...     return keras.ops.one_hot(keras.ops.take(tokens, position, axis=1) + 1, 8), state
        >>> print(greedy_search(step, state=(), batch_size=1, max_length=6, begin_id=2, end_id=5).numpy())
        [[3 4 5 0 0 0]]
    """
    who = "greedy_search"
    if not callable(step):
        _checks.fail(who, "step", "be callable, see `tfattn.decoding`", step)
    if not hasattr(batch_size, "dtype"):
        _checks.positive_int(who, "batch_size", batch_size)
    settings = _Settings(
        _checks.positive_int(who, "max_length", max_length),
        _checks.non_negative_int(who, "begin_id", begin_id),
        _checks.non_negative_int(who, "end_id", end_id),
        _checks.non_negative_int(who, "padding_id", padding_id),
    )
    begin = ops.full((batch_size, 1), begin_id, dtype="int32")
    return compiled(_greedy, step, settings)(begin, state)


def _greedy(step, settings, begin, state):
    batch, length = ops.shape(begin)[0], settings.max_length
    rest = ops.full((batch, length), settings.padding_id, dtype="int32")
    tokens = ops.concatenate([begin, rest], axis=1)  # (B, 1 + L)

    # A loop carries tensors alone: what is None in the state stays outside of it.
    def packed(state):
        return tuple(leaf for leaf in keras.tree.flatten(state) if leaf is not None)

    def unpacked(leaves):
        leaves = iter(leaves)
        return keras.tree.map_structure(lambda leaf: None if leaf is None else next(leaves), state)

    def going_on(position, tokens, ended, leaves):
        return ops.logical_and(position < length, ops.logical_not(ops.all(ended)))

    def write(position, tokens, ended, leaves):
        logits, state = step(tokens[:, :length], position, unpacked(leaves))
        best = ops.cast(ops.argmax(logits, axis=-1), "int32")  # (B,)
        best = ops.where(ended, settings.padding_id, best)
        here = ops.arange(length + 1, dtype="int32") == position + 1
        tokens = ops.where(here, best[:, None], tokens)
        return position + 1, tokens, ops.logical_or(ended, best == settings.end_id), packed(state)

    start = (ops.zeros((), "int32"), tokens, ops.zeros((batch,), "bool"), packed(state))
    _, tokens, _, _ = ops.while_loop(going_on, write, start)
    return tokens[:, 1:]
