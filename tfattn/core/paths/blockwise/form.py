"""A call of the streamed path as its tensors and the rest, so that functions of tensors alone can
stand for it.

A tensor that hangs on a mask or a dropout is an argument like the operands then: functions that are
traced once can be called with another one, and a gradient finds it in any graph. Those of a mask of
one's own stay where they are.
"""

from typing import NamedTuple

import tensorflow as tf

from tfattn.core import masks
from tfattn.core.paths.blockwise.block_dropout import Dropout

__all__ = ["Form"]


class Form(NamedTuple):
    """What a call of the streamed path holds besides its tensors."""

    has_bias: bool
    num_parameters: int
    rule: object  # the mask, taken apart
    rate: object  # of dropout, or None

    @classmethod
    def of(cls, operands, bias, parameters, mask, dropout):
        """The form, and the tensors: those that have gradients, then those of mask and dropout."""
        rule, arrays = _taken_apart(mask)
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
        """Whether two calls of one form do the same: not where a mask is of a class that nobody
        here knows.
        """
        return _all_known(self.rule)

    def parts(self, tensors):
        """query, key, value, bias or None, parameters, mask, dropout."""
        tensors = iter(tensors)
        query, key, value = (next(tensors) for _ in range(3))
        bias = next(tensors) if self.has_bias else None
        parameters = [next(tensors) for _ in range(self.num_parameters)]
        mask = _put_together(self.rule, tensors)
        dropout = None if self.rate is None else Dropout(self.rate, next(tensors))
        return query, key, value, bias, parameters, mask, dropout


def _taken_apart(mask):
    """A mask object as its class and attributes, which can be hashed, and the tensors among them.

    A mask of one's own stays whole, since it may hold anything.
    """
    tensors = []

    def taken(x):
        if type(x).__module__ == masks.__name__:
            return _Rule(type(x), tuple((name, taken(value)) for name, value in vars(x).items()))
        if tf.is_tensor(x):
            tensors.append(x)
            return tf.Tensor
        return x

    return taken(mask), tensors


def _put_together(rule, tensors):
    if rule is tf.Tensor:
        return next(tensors)
    if not isinstance(rule, _Rule):
        return rule
    mask = object.__new__(rule.kind)
    for name, value in rule.attributes:
        setattr(mask, name, _put_together(value, tensors))
    return mask


def _all_known(rule):
    """Whether every class of a mask that was taken apart is of the collection."""
    if isinstance(rule, _Rule):
        return all(_all_known(value) for _, value in rule.attributes)
    return not isinstance(rule, masks.Mask)


class _Rule(NamedTuple):
    kind: type
    attributes: tuple
