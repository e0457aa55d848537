"""What models hand to losses and searches, which do not import each other."""

import dataclasses
from typing import Any, NamedTuple

from keras import ops

from tfattn._types import Tensor


class Past(NamedTuple):
    """A tensor in a step's state with an entry for each position, such as the cached keys.

    A step writes the entry of its own position, and reads no later entry. So a search may pass only
    the first positions, up to the current position or a few more: work and memory then grow with
    the number of written positions. A step reads this number with `ops.shape`, and returns as many
    positions. The first step gets all L positions, and so does every step where XLA might compile
    the search. Entries after the written positions are not kept.

    Attributes:
        tensor: `(B, ..., L, P)`, with room for L positions.
    """

    tensor: Tensor


@dataclasses.dataclass(eq=False)
class LogitFactors:
    """Logits `(..., V)` as a product: logits = tokens · vectorsᵀ + bias.

    A model attaches its factors to its logits, as Keras attaches masks to tensors; the result of an
    operation on the logits has none. A loss that finds factors computes from them and sets
    `are_used`; metrics then use them too. Only logits of a TensorFlow graph have factors: a graph
    does not compute logits that no other operation reads.
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


def prompt_of(ids: Tensor) -> Tensor:
    """The prompt of a search, int32 `(B, P + 1)`, from ids `(B, P)` with padding on either side."""
    ids = ops.cast(ids, "int32")
    # Moves padding to the end of each row.
    place = ops.arange(ops.shape(ids)[1], dtype="int32")
    order = ops.argsort(ops.where(ids == 0, place + ops.shape(ids)[1], place), axis=1)
    # One more column of padding, which `step` reads at all positions after the prompt.
    return ops.pad(ops.take_along_axis(ids, order, axis=1), [[0, 0], [0, 1]])


def with_prompt(logits: Tensor, prompt: Tensor, position: Any) -> Tensor:
    """Logits `(B, V)` that give the prompt's next token probability 1."""
    wanted = ops.take(prompt, ops.minimum(position, ops.shape(prompt)[1] - 1), axis=1)[:, None]
    other = ops.arange(ops.shape(logits)[-1], dtype="int32") != wanted
    return ops.where(ops.logical_and(wanted != 0, other), -float("inf"), logits)
