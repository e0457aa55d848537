"""What models and losses agree on without knowing each other: which product the logits are."""

from typing import Any, NamedTuple

__all__ = ["Factors"]

_NAME, _SPARED = "_tfattn_factors", "_tfattn_spared"


class Factors(NamedTuple):
    """Logits `(..., V)` as tokens · vectorsᵀ + bias, for who can do without the logits.

    They travel on the logits, as Keras's masks do on its tensors, and are gone with the first
    operation on them. On those of a TensorFlow graph alone: there the logits that nothing asks for
    are not computed.

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
        setattr(logits, _NAME, self)
        return logits

    @staticmethod
    def fit_on(logits):
        """Whether these logits may never be computed."""
        return hasattr(logits, "graph")

    @staticmethod
    def of(logits):
        """The factors on these logits, or None."""
        return getattr(logits, _NAME, None)

    @staticmethod
    def spare(logits):
        """Notes that a loss did without these logits; who else needs them would be the one that has
        them made.
        """
        setattr(logits, _SPARED, True)

    @staticmethod
    def are_spared(logits):
        """Whether a loss did without these logits."""
        return getattr(logits, _SPARED, False)
