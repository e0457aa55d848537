"""What models and losses share without importing each other: the factors of the logits."""

import dataclasses

from tfattn._types import Tensor

__all__ = ["LogitFactors"]


@dataclasses.dataclass(eq=False)
class LogitFactors:
    """Logits `(..., V)` as a product, for a loss that can do without the logits.

        logits = tokens · vectorsᵀ + bias

    A model that computes its logits so puts this object on them. It travels on the logits, as
    Keras's masks do on its tensors, and the first operation on them loses it. A loss that finds it
    computes from the factors, and notes so: a metric then does the same. Whoever else reads the
    logits has them computed. Only logits of a TensorFlow graph carry factors: there, what nothing
    asks for is not computed.

        return LogitFactors(tokens, vectors).on(logits)     # the model
        factors = LogitFactors.of(logits)                   # the loss and the metric; or None
        factors.are_used = True                             # the loss, where it needs no logits

    Attributes:
        tokens: `(..., W)`.
        vectors: `(V, W)`.
        bias: `(V,)`, or None.
        are_used: whether a loss has done without the logits.
    """

    tokens: Tensor
    vectors: Tensor
    bias: Tensor | None = None
    are_used: bool = dataclasses.field(default=False, init=False)

    @staticmethod
    def of(logits: Tensor) -> "LogitFactors | None":
        """The factors on these logits, or None."""
        return getattr(logits, "_tfattn_factors", None)

    @staticmethod
    def fit_on(logits: Tensor) -> bool:
        """Whether these logits may never be computed."""
        return hasattr(logits, "graph")

    def on(self, logits: Tensor) -> Tensor:
        """The same logits, with these factors on them."""
        logits._tfattn_factors = self
        return logits

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Tokens, vectors and, if there is one, bias."""
        factors = self.tokens, self.vectors, self.bias
        return tuple(factor for factor in factors if factor is not None)
