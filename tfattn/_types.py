"""Names for what has no type that all of Keras's backends share."""

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Shape", "Size", "Step", "Tensor"]

Tensor = Any  # of any backend

Shape = Sequence[int | None]  # a static shape: None where only the run knows the size

Size = int | Tensor  # a tensor, a scalar of integers, where only the run knows it

# The contract of `tfattn.decoding`: (tokens, position, state) to (logits, state).
Step = Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]]
