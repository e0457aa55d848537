"""What models and losses agree on without knowing each other: which product the logits are."""

from typing import Any, NamedTuple

__all__ = ["Factors"]

_NAME = "_tfattn_factors"


class Factors(NamedTuple):
    """Logits `(..., V)` as tokens · vectorsᵀ + bias, for who can do without the logits.

    They travel on the logits, as Keras's masks do on its tensors, and are gone with the first operation on them. In a graph
    alone: there the logits that nothing asks for are not computed.

    Attributes:
        tokens: `(..., W)`.
        vectors: `(V, W)`.
        bias: `(V,)`, or None.
    """

    tokens: Any
    vectors: Any
    bias: Any = None

    def on(self, logits):
        """The same logits, with these factors on them."""
        if hasattr(logits, "graph"):
            setattr(logits, _NAME, self)
        return logits

    @staticmethod
    def of(logits):
        """The factors on these logits, or None."""
        return getattr(logits, _NAME, None)
