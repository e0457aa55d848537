"""A separate mask for each head."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import pairs
from tfattn.core.masks.base import Mask, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.joins import as_mask, either
from tfattn.core.masks.ranges import Bounds, overlap


@registered
class per_head(Mask):
    """Each head, or group of heads, has its own mask.

        may attend in head h = masks[group of h] lets the query see the key

    The streamed path skips a block where no head sees any of its pairs: a window in one head saves
    no time beside a head without a window; memory stays linear.

    Args:
        masks: a sequence of mask objects, or bool arrays `(T, S)` or `(B, T, S)`.
        heads: a sequence of positive ints, the number of heads for each mask, in order. Defaults to
            one head each.
    Raises:
        ValueError: there is no mask; `heads` has another length, or holds no positive integers; the
            scores have another number of heads, or none.
    Example: two heads with a window, and one head that sees all earlier keys.
        >>> mask = masks.per_head([masks.window(2), masks.prefix(3)], heads=[2, 1])
        >>> mask = mask & masks.causal()
        >>> print(np.asarray(mask.dense(3, 3)).astype(int)[0, 1:])
        [[[1 0 0]
          [1 1 0]
          [0 1 1]]
        <BLANKLINE>
         [[1 0 0]
          [1 1 0]
          [1 1 1]]]
    """

    def __init__(self, masks: Sequence[Any], heads: Sequence[int] | None = None):
        who = "masks.per_head"
        if not isinstance(masks, list | tuple) or not masks:
            _checks.fail(who, "masks", "be a sequence of at least one mask", masks)
        for mask in masks:
            if not isinstance(mask, Mask):
                pairs.checked_bool(who, "masks", mask, letters=pairs.SHAPES[3])
        self.masks = [as_mask(mask) for mask in masks]
        heads = [1] * len(masks) if heads is None else heads
        if not isinstance(heads, list | tuple) or len(heads) != len(masks):
            _checks.fail(who, "heads", f"hold a number for each of the {len(masks)} masks", heads)
        self.heads = [_checks.positive_int(who, "heads", count) for count in heads]

    def check(self, who: str, argument: str, shape: Shape) -> None:
        total = sum(self.heads)
        if len(shape) != 4 or shape[1] not in (None, total):
            heads = shape[1] if len(shape) == 4 else "none"
            expected = f"have as many heads as the scores, {heads}"
            _checks.fail(who, argument, expected, f"per_head of {total} heads")
        for mask in self.masks:
            mask.check(who, argument, (shape[0], *shape[2:]))

    def on(self, grid: Grid) -> Tensor:
        seen = [mask.on(grid) for mask in self.masks]
        seen = [pairs.with_heads(x if len(x.shape) == 3 else x[None], 4) for x in seen]
        # An axis of size 1 in one mask may have its full size in another.
        shape = ops.shape(reduce(ops.logical_or, seen))  # (1 or B, 1, 1 or t, 1 or s)
        by_mask = [
            ops.repeat(ops.broadcast_to(one, shape), count, axis=1)
            for one, count in zip(seen, self.heads, strict=True)
        ]
        return ops.concatenate(by_mask, axis=1)  # (1 or B, H, 1 or t, 1 or s)

    def bounds(self, grid: Grid) -> Bounds:
        """The ranges of all heads, and the keys that every head sees."""
        of_masks = [Bounds.of(mask, grid) for mask in self.masks]
        full = reduce(overlap, (bounds.full for bounds in of_masks))
        return Bounds(tuple(seen for bounds in of_masks for seen in bounds.seen), full)

    def seen_keys(self, grid: Grid) -> Tensor | None:
        return reduce(either, (mask.seen_keys(grid) for mask in self.masks))
