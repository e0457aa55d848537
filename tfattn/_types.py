"""Type aliases; Keras's backends share no tensor type."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol


class _HasArray(Protocol):
    def __array__(self) -> Any: ...


if TYPE_CHECKING:
    # Numbers, nested sequences of numbers, and arrays of any library.
    ArrayLike = _HasArray | Sequence[Any] | complex
    Tensor = Any  # a tensor of any backend, or a NumPy array
else:  # one word each in `help`
    ArrayLike, Tensor = (type(name, (), {}) for name in ("ArrayLike", "Tensor"))

Shape = Sequence[int | None]  # a static shape: None where a size is unknown until run time
Size = int | Tensor  # an integer scalar tensor where the size is unknown until run time
# The step function of `tfattn.decoding`: (tokens, position, state) to (logits, state).
Step = Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]]
