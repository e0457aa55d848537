"""A call of the streamed path as its tensors and the rest, so that functions of tensors alone can
stand for it.

A tensor that hangs on a mask or a dropout is an argument like the operands then: functions that are
traced once can be called with another one, and a gradient finds it in any graph. Those of a mask
that does not come apart (`trees`) stay where they are.
"""

from typing import NamedTuple

import tensorflow as tf

from tfattn.core import trees
from tfattn.core.paths.blockwise.block_dropout import Dropout

__all__ = ["Form"]


class Form(NamedTuple):
    """What a call of the streamed path holds besides its tensors."""

    has_bias: bool
    num_parameters: int
    rule: trees.Structure  # of the mask
    rate: object  # of dropout, or None

    @classmethod
    def of(cls, operands, bias, parameters, mask, dropout):
        """The form, and the tensors: those that have gradients, then those of mask and dropout."""
        arrays, rule = trees.flatten(mask)
        tensors = [
            *operands,
            *([] if bias is None else [bias]),
            *map(tf.convert_to_tensor, parameters),
            *arrays,
        ]
        form = cls(
            bias is not None, len(parameters), rule, None if dropout is None else dropout.rate
        )
        return form, tensors if dropout is None else [*tensors, dropout.key]

    @property
    def num_differentiable(self):
        return 3 + self.has_bias + self.num_parameters

    @property
    def shareable(self):
        """Whether two calls of one form do the same: not where a mask stays whole."""
        return trees.is_shareable(self.rule)

    def parts(self, tensors):
        """query, key, value, bias or None, parameters, mask, dropout."""
        tensors = iter(tensors)
        query, key, value = (next(tensors) for _ in range(3))
        bias = next(tensors) if self.has_bias else None
        parameters = [next(tensors) for _ in range(self.num_parameters)]
        mask = trees.unflatten(self.rule, tensors)
        dropout = None if self.rate is None else Dropout(self.rate, next(tensors))
        return query, key, value, bias, parameters, mask, dropout
