"""Folding of inputs with more than one token axis into sequences, and back."""

import math
import numbers
from typing import Any

from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Size, Tensor
from tfattn.core.objects import GridFunction
from tfattn.core.tensors import given_tensor
from tfattn.layers.tokens import checked_padding


def checked_axes(who: str, attention_axes: Any) -> tuple[int, ...] | None:
    """The axes as a tuple; None for None. Raises unless they can be token axes."""
    if attention_axes is None:
        return None
    given = attention_axes if isinstance(attention_axes, list | tuple) else (attention_axes,)
    integers = all(isinstance(a, numbers.Integral) and not isinstance(a, bool) for a in given)
    if not given or not integers or len(set(given)) < len(given) or {0, -1} & set(given):
        expected = "name axes once, between the batch, 0, and the features, -1"
        _checks.fail(who, "attention_axes", expected, attention_axes)
    return tuple(int(axis) for axis in given)


class Axes:
    """The axes A of `(B, ..., D)` whose tokens attend to each other.

        (B, F…, A…, D)  →  (B·F, T, D),   T = Π A

    The other axes F are folded into the batch. Tokens are numbered row by row, the last of the axes
    A fastest; causal masks, lengths, positions, mask and bias objects use this order.
    """

    def __init__(
        self, who: str, attention_axes: tuple[int, ...] | None, query: Shape, value: Shape, key: Any
    ):
        self.who, self.rank = who, len(query)
        rank, key = self.rank, value if key is None else key
        given = range(1, rank - 1) if attention_axes is None else attention_axes
        self.attended = tuple(axis % rank for axis in given if -rank <= axis < rank)
        inside = set(self.attended) <= set(range(1, rank - 1))
        if len(set(self.attended)) < len(given) or not inside or not self.attended:
            expected = f"name axes between the first and the last of {rank}, and each once"
            _checks.fail(who, "attention_axes", expected, attention_axes)
        self.folded = tuple(a for a in range(1, rank - 1) if a not in self.attended)
        for name, shape in (("value", value), ("key", key)):
            if len(shape) != rank:
                _checks.fail(who, name, f"have as many axes as `query`, {rank}", tuple(shape))
            for axis in range(rank - 1):
                of_query = axis in (0, *self.folded)
                other_name, other = ("query", query) if of_query else ("value", value)
                if None not in (shape[axis], other[axis]) and shape[axis] != other[axis]:
                    expected = f"be as long as `{other_name}` on axis {axis}, {other[axis]}"
                    _checks.fail(who, name, expected, tuple(shape))

    def fold_call(
        self, tokens: list[Any], valid_lens: Any, bias: Any
    ) -> tuple[list[Any], Any, Any]:
        """The folded arguments of a call, `tokens` those up to `attention_mask`. Mask and bias
        objects are not changed: their entries for rows of a batch are for the B·F rows.
        """
        query, value, key, query_mask, value_mask, key_mask, attention_mask = tokens
        key_mask = None if key_mask is value_mask else key_mask
        folded = [
            self.fold(query),
            self.fold(value),
            None if key is None else self.fold(key),
            self.fold_padding("query_mask", query_mask, query),
            self.fold_padding("value_mask", value_mask, value),
            self.fold_padding("key_mask", key_mask, value),
            self.fold_pairs("attention_mask", attention_mask, query, value),
        ]
        bias = self.fold_pairs("bias", bias, query, value)
        return folded, self.fold_lengths(valid_lens, query), bias

    def fold(self, tokens: Tensor) -> Tensor:
        """`(B, ..., D)` to `(B·F, T, D)`."""
        order = (0, *self.folded, *self.attended, self.rank - 1)
        length = math.prod(self._sizes(tokens, self.attended))
        return ops.reshape(ops.transpose(tokens, order), (-1, length, tokens.shape[-1]))

    def fold_padding(self, name: str, mask: Any, tokens: Tensor) -> Tensor | None:
        """A mask with one entry per token, `(B, ...)`, to `(B·F, T)`."""
        if mask is None:
            return None
        mask = checked_padding(self.who, name, mask, tokens)
        mask = ops.broadcast_to(mask, ops.shape(tokens)[:-1])
        return self.fold(ops.expand_dims(mask, -1))[..., 0]

    def fold_lengths(self, lengths: Any, query: Tensor) -> Tensor | None:
        """Lengths, `(B,)`, `(B, F…)` or `(B, F…, T)`, to `(B·F,)` or `(B·F, T)`."""
        if lengths is None or not self.folded:
            return lengths
        rows, letters = (0, *self.folded), "(B,), (B, F…) or (B, F…, T)"
        lengths = given_tensor(self.who, "valid_lens", lengths, letters)
        ranks = (1, len(rows), len(rows) + 1)
        _checks.rank(self.who, "valid_lens", lengths.shape, ranks, letters)
        lead, each = ops.shape(lengths)[: len(rows)], ops.shape(lengths)[len(rows) :]
        lengths = ops.reshape(lengths, (*lead, *[1] * (len(rows) - len(lead)), *each))
        lengths = ops.broadcast_to(lengths, (*self._sizes(query, rows), *each))
        return ops.reshape(lengths, (-1, *each))

    def fold_pairs(self, name: str, pairs: Any, query: Tensor, key: Tensor) -> Any:
        """A mask or bias as an array, to `(T, S)`, `(B·F, T, S)` or `(B·F, H, T, S)`.

        As in Keras's layer, the last axes are the axes A of the queries and of the keys; B, F…, H
        precede them, and may be omitted from the right.
        """
        if pairs is None or isinstance(pairs, GridFunction):
            return pairs
        letters = "(B, F…, H, A…, A…), any of B, F…, H omitted from the right"
        pairs = given_tensor(self.who, name, pairs, letters)
        rows, tail = (0, *self.folded), 2 * len(self.attended)
        most = tail + len(rows) + 1
        _checks.rank(self.who, name, pairs.shape, range(tail, most + 1), letters)
        lead = list(ops.shape(pairs)[:-tail])
        heads = [lead.pop()] if len(pairs.shape) == most else []
        lead += [1] * (len(rows) - len(lead)) if lead else []
        spread = ops.reshape(pairs, (*lead, *heads, *ops.shape(pairs)[-tail:]))
        sizes = [self._sizes(x, self.attended) for x in (query, key)]
        repeats = all(size == 1 for size in spread.shape[: len(lead)])
        batch = lead if repeats else self._sizes(query, rows)
        spread = ops.broadcast_to(spread, (*batch, *heads, *sizes[0], *sizes[1]))
        square = [math.prod(size) for size in sizes]
        return ops.reshape(spread, (*([1 if repeats else -1] if lead else []), *heads, *square))

    def unfold(self, output: Tensor, query: Tensor) -> Tensor:
        """`(B·F, T, E…)` to the query's axes, with E… in place of its features."""
        order = (0, *self.folded, *self.attended)
        features = output.shape[2:]
        sizes = self._sizes(query, order[1:])
        output = ops.reshape(output, (-1, *sizes, *features))
        back = [order.index(axis) for axis in range(self.rank - 1)]
        return ops.transpose(output, (*back, *range(len(order), len(output.shape))))

    def unfold_weights(self, weights: Any, query: Tensor, key: Tensor) -> Tensor:
        """`(B·F, H, T, S)` to `(B, F…, H, A…, A…)`, as in Keras's layer."""
        folded = self._sizes(query, self.folded)
        ends = [self._sizes(x, self.attended) for x in (query, key)]
        return ops.reshape(weights, (-1, *folded, weights.shape[1], *ends[0], *ends[1]))

    def _sizes(self, tensor: Tensor, axes: tuple[int, ...]) -> tuple[Size, ...]:
        sizes = ops.shape(tensor)
        return tuple(sizes[axis] for axis in axes)
