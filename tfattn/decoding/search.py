"""What a search is: how it chooses tokens, and what it has found so far."""

from typing import Any, NamedTuple

import keras
from keras import ops

from tfattn._types import Tensor
from tfattn.decoding.arguments import Settings
from tfattn.decoding.rules.base import Rule
from tfattn.decoding.state import take_rows

__all__ = ["Found", "Ruled", "Search"]


class Ruled(NamedTuple):
    """What a search with rules keeps of them."""

    states: tuple  # each rule's own: nested tensors (R, ...)
    at_end: Tensor  # float32 (R,), what they add to the score of a hypothesis that ends or ended


class Found(NamedTuple):
    """The tokens so far, one row per hypothesis; the rows of one sentence are neighbours."""

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


class Search:
    """How a search chooses tokens. Each one defines `choose`.

    Attributes:
        width: rows of a sentence after the first step; before it a sentence has one.
        sums: whether the search sums log-probabilities. It is then given them, less those of what
            is forbidden.
        rules, settings: of this run.
    """

    width = 1
    sums = False
    rules: tuple[Rule, ...] = ()
    settings: Settings

    def start(self, batch: int | Tensor) -> dict[str, Tensor]:
        """`Found.own` before the first step. By default there is nothing to keep."""
        return {}

    def choose(
        self, logits: Tensor, position: Tensor, found: Found, width: int
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """The next token of each row, the row that each comes from, and the new `Found.own`.

        Args:
            logits: float `(R, V)`.
            position: scalar int32, the last decided position.
            found: what is decided so far.
            width: rows of a sentence now.
        Returns:
            (int32 `(R,)`, int32 `(R,)` or None where each row comes from itself, dict).
        """
        raise NotImplementedError

    def done(self, found: Found) -> Tensor:
        """`Found.done`. By default a row's result is what the row has when it has ended."""
        return found.ended

    def stuck(self, found: Found) -> Tensor:
        """bool `(B,)`, whether a sentence had nothing to write."""
        return found.stuck

    def ends(self, tokens: Tensor, position: Tensor, found: Found) -> Tensor:
        """bool `(R,)`, whether rows end with these tokens at `position + 1`.

        At its limit a row ends without an end token, so that no longer row beside it changes it. An
        end token within a prompt ends nothing.
        """
        ends = tokens == self.settings.end_id
        if ops.is_tensor(found.goes_on):
            ends = ops.logical_and(ends, ops.logical_not(found.goes_on))
        return ops.logical_or(ends, position + 1 >= found.limits)

    def alive(self, found: Found) -> Tensor:
        """bool `(R,)`, which rows there are. By default all."""
        return ops.ones_like(found.done)

    def results(self, found: Found) -> tuple[dict[str, Any], Tensor | None]:
        """(tensors to return by name, the rows of the results or None where it is all), at the end.

        By default the tokens of each row.
        """
        return {"tokens": found.tokens[:, 1:]}, None
