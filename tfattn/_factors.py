"""What models and losses share without importing each other: the factors of the logits."""

from typing import NamedTuple

from tfattn._types import Tensor

__all__ = ["Factors"]

_NAME, _SPARED = "_tfattn_factors", "_tfattn_spared"


class Factors(NamedTuple):
    """Logits `(..., V)` as tokens · vectorsᵀ + bias, for a loss that can do without the logits.

    They travel on the logits, as Keras's masks do on its tensors, and the first operation on the
    logits loses them. Only logits of a TensorFlow graph carry them: there, logits that nothing
    asks for are not computed.

    Attributes:
        tokens: `(..., W)`.
        vectors: `(V, W)`.
        bias: `(V,)`, or None.
    """

    tokens: Tensor
    vectors: Tensor
    bias: Tensor | None = None

    def on(self, logits: Tensor) -> Tensor:
        """The same logits, with these factors on them."""
        setattr(logits, _NAME, self)
        return logits

    @staticmethod
    def fit_on(logits: Tensor) -> bool:
        """Whether these logits may never be computed."""
        return hasattr(logits, "graph")

    @staticmethod
    def of(logits: Tensor) -> "Factors | None":
        """The factors on these logits, or None."""
        return getattr(logits, _NAME, None)

    @staticmethod
    def spare(logits: Tensor) -> None:
        """Notes that a loss did without these logits: whoever else reads them has them computed."""
        setattr(logits, _SPARED, True)

    @staticmethod
    def are_spared(logits: Tensor) -> bool:
        """Whether a loss did without these logits."""
        return getattr(logits, _SPARED, False)
