"""A call of attention: the arguments of every implementation."""

import dataclasses
from collections.abc import Callable, Sequence

import keras
from keras import ops

from tfattn._types import Size, Tensor
from tfattn.core.biases import Bias
from tfattn.core.masks import Mask
from tfattn.core.objects import Splittable
from tfattn.core.scores import scaled_dot_product


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall(Splittable):
    """The arguments of `attend`.

    `attend` builds a call from checked arguments, and a layer from checked and projected tensors.
    An implementation checks only what it cannot do.

    Attributes:
        query, value, key: float tensors, query `(B, T, D)` or `(B, H, T, D)`, value and key
            `(B, S, D)` or `(B, G, S, D)`. A token that the mask hides from every query is 0, a
            layer's projection of 0, or an entry of a cache.
        learned: the parameters of the bias, read once by an engine.
        mask, bias: objects of `core.masks` and `core.biases`, or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    learned: Sequence[Tensor] = ()
    parameters: Sequence[Tensor] = ()
    bias: Bias | None = None
    mask: Mask | None = None
    score: Callable[..., Tensor] = scaled_dot_product
    dropout: float = 0.0
    seed: int | keras.random.SeedGenerator | None = None
    return_weights: bool = False
    path: str | None = None
    return_log_sum_exp: bool = False
    normalizer: Callable[..., Tensor] | None = None

    @property
    def lengths(self) -> tuple[Size, Size]:
        """T and S."""
        known = self.query.shape[-2], self.key.shape[-2]
        if None not in known:
            return known
        return ops.shape(self.query)[-2], ops.shape(self.key)[-2]

    @property
    def rank(self) -> int:
        """3, or 4 with heads."""
        return len(self.query.shape)
