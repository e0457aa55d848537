from typing import NamedTuple
from keras import ops
import keras


class _Rule(NamedTuple):
    kind: type
    attributes: tuple


class _T:
    pass


def flatten(mask):
    from tfattn.core import masks
    import tensorflow as tf

    tensors = []

    def taken(x):
        if type(x).__module__ == masks.__name__:
            return _Rule(type(x), tuple((n, taken(v)) for n, v in vars(x).items()))
        if tf.is_tensor(x):
            tensors.append(x)
            return _T
        return x

    return taken(mask), tensors


def unflatten(rule, tensors):
    if rule is _T:
        return next(tensors)
    if not isinstance(rule, _Rule):
        return rule
    mask = object.__new__(rule.kind)
    for n, v in rule.attributes:
        setattr(mask, n, unflatten(v, tensors))
    return mask


def is_known(rule):
    from tfattn.core import masks

    if isinstance(rule, _Rule):
        return all(is_known(v) for _, v in rule.attributes)
    return not isinstance(rule, masks.Mask)
