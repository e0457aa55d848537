"""What a search has found so far."""

from typing import NamedTuple

import keras

from tfattn._types import Tensor
from tfattn.decoding.state import take_rows

__all__ = ["Found", "Ruled"]


class Ruled(NamedTuple):
    """What a search with rules keeps of them."""

    states: tuple  # each rule's own: nested tensors (R, ...)
    at_end: Tensor  # float32 (R,), what they add to the score of a hypothesis that ends or ended


class Found(NamedTuple):
    """The tokens so far, one row per hypothesis; the rows of one sentence are neighbors."""

    tokens: Tensor  # int32 (R, 1 + L), the begin token in front
    ended: Tensor  # bool (R,), whether the row has its end token, or as many tokens as it may have
    done: Tensor  # bool (R,), whether the result of the row's sentence can no longer change
    limits: Tensor  # int32 (R,), the most tokens that the row may have
    stuck: Tensor  # bool (R,), whether the row had no token to write, and ended there
    broken: Tensor  # bool (R,), whether scores of the row's sentence were NaN, and it ended there
    own: dict[str, Tensor]  # tensors (R, ...) that the search itself keeps
    ruled: Ruled | tuple[()] = ()  # empty without rules
    goes_on: Tensor | tuple[()] = ()  # bool (R,), in `choose`: a prompt goes on after the token

    def of_rows(self, rows: Tensor | None) -> "Found":
        """The same for a selection of rows; `own`, which the search selects itself, unchanged."""
        taken = keras.tree.map_structure(
            lambda tensor: take_rows(tensor, rows), self._replace(own=())
        )
        return taken._replace(own=self.own)
