"""Type aliases; Keras's backends share no tensor type."""

from collections.abc import Callable, Sequence
from typing import Any

Tensor = Any  # of any backend

Shape = Sequence[int | None]  # a static shape: None where a size is unknown until run time

Size = int | Tensor  # an integer scalar tensor where the size is unknown until run time

# The step function of `tfattn.decoding`: (tokens, position, state) to (logits, state).
Step = Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]]
