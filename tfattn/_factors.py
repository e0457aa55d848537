"""Factors of logits, shared by models and losses, which do not import each other."""

import dataclasses
from typing import Any

from tfattn._types import Tensor


@dataclasses.dataclass(eq=False)
class LogitFactors:
    """Logits `(..., V)` as a product, for a loss that does not need the logits themselves.

        logits = tokens · vectorsᵀ + bias

    A model attaches its factors to its logits as an attribute, as Keras attaches masks to tensors;
    the result of an operation on the logits has none. A loss that finds factors computes from them
    and sets `are_used`; metrics then use them too. Only logits of a TensorFlow graph have factors:
    a graph does not compute logits that no other operation reads.
    """

    tokens: Tensor  # (..., W)
    vectors: Tensor  # (V, W)
    bias: Tensor | None = None  # (V,)
    are_used: bool = dataclasses.field(default=False, init=False)

    @staticmethod
    def of(logits: Tensor) -> "LogitFactors | None":
        """The factors of these logits, or None."""
        return getattr(logits, "_tfattn_factors", None)

    def on(self, logits: Any) -> Tensor:
        """The same logits, with these factors attached."""
        logits._tfattn_factors = self
        return logits
