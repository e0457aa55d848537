"""What all masks share."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Size, Tensor
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range
from tfattn.core.rule import Rule, registered_in

__all__ = ["OPERATORS", "Mask", "refuse_symbols", "registered", "saved"]

# What `&`, `|` and `~` make, by symbol. `joins` enters it: what they make is a mask in its turn, so
# that this file cannot import that one.
OPERATORS: dict[str, Callable[..., "Mask"]] = {}


class Mask(Rule):
    """Which query may attend to which key: True means *may attend*.

    A mask is a class with `on`. If its constructor has arguments, it has `get_config` too, and
    `flatten`. That is enough on every path.

    The rest are hooks, and optional: what a mask can tell in short, so that blocks are skipped, or
    taken unmasked. **A hook speaks of the `on` that stands beside it in a class, or further up.** A
    subclass with an `on` of its own and no hooks inherits none, and is still exact: whoever asks a
    mask does so through `tfattn.core.masks.hooks`, which looks at which class defines what, and
    answers for a mask that cannot tell what is written here.

    Attributes:
        is_relative: Hook. Whether `on` gives `(t, s)` and asks for nothing but how far a key is
            from a query, `grid.key_positions()` less `grid.query_positions()`. One block then does
            for a whole diagonal of them. Such a mask is asked beyond the square too, and must
            answer by distance there.
    Example: every second key, counted from the query.
        >>> class EverySecond(masks.Mask):
        ...     def on(self, grid):
        ...         distance = grid.key_positions() - grid.query_positions()  # (t, s)
        ...         return distance % 2 == 0
        >>> print(EverySecond().dense(2, 4).numpy().astype(int))
        [[1 0 1 0]
         [0 1 0 1]]
    """

    is_relative: bool = False

    def on(self, grid: Grid) -> Tensor:
        """Which pairs of `grid` may attend: bool, broadcastable to `(B, t, s)` or `(B, H, t, s)`.

        A mask that holds an array cuts this rectangle's part out of it with `grid.batch_of`,
        `grid.rows_of` and `grid.columns_of`. The whole square is a rectangle too, of which they cut
        nothing, so that a mask without them is right on the dense path and wrong on the blockwise
        one, which asks for some rows of the batch at a time.
        """
        raise NotImplementedError

    def key_bounds(self, grid: Grid) -> Range:
        """Hook. Bounds `(low, high)` on what the queries of `grid` see: every key outside is hidden
        from all of them.

        Integers, or scalar integer tensors where only the run can tell. What lies outside is
        skipped.
        """
        return 0, grid.num_keys

    def full_bounds(self, grid: Grid) -> Range:
        """Hook. A range of keys `(low, high)` that every query of `grid` sees; empty where low ≥
        high. A block inside of it is full, and needs no masking.
        """
        return 0, 0

    def max_keys(self, grid: Grid) -> int:
        """Hook. The most keys that the queries of `grid` see, as far as that is known before a
        graph runs. For what is narrower than its `key_bounds`, or has only tensors for them. Asked
        where the number of keys is an int.
        """
        return grid.num_keys

    def seen_keys(self, num_queries: Size, num_keys: Size) -> Tensor | None:
        """Hook. The keys that some query may see: bool, broadcastable to `(B, S)`; None where the
        mask cannot tell cheaply.

        What no query may see is padding. It may say too much, never too little.
        """
        return None

    def common_keys(self, num_queries: Size, num_keys: Size) -> Tensor | None:
        """Hook. The keys that every query may see, likewise; None where none is known. It may say
        too little, never too much.
        """
        return None

    def dense(self, num_queries: Size, num_keys: Size) -> Tensor:
        """The mask as a bool tensor, broadcastable to `(B, T, S)` or `(B, H, T, S)`."""
        return self.on(Grid.whole(num_queries, num_keys))

    def __and__(self, other: Any) -> "Mask":
        return OPERATORS["&"](self, other)

    def __rand__(self, other: Any) -> "Mask":
        return OPERATORS["&"](other, self)

    def __or__(self, other: Any) -> "Mask":
        return OPERATORS["|"](self, other)

    def __ror__(self, other: Any) -> "Mask":
        return OPERATORS["|"](other, self)

    def __invert__(self) -> "Mask":
        return OPERATORS["~"](self)


# Class decorator: saved files name the mask `tfattn>masks.<class name>`.
registered = registered_in("masks")


def saved(value: int | Tensor) -> int | list:
    """A mask's array as nested lists, for its config."""
    return value if isinstance(value, int) else ops.convert_to_numpy(value).tolist()


def refuse_symbols(who: str, argument: str, *arrays: Tensor) -> None:
    """A functional model finds its symbolic tensors among the arguments of its layers, and not
    inside of an object.
    """
    for array in arrays:
        if isinstance(array, keras.KerasTensor):
            _checks.fail(
                who,
                argument,
                "hold no symbolic tensor inside of a mask object: pass it to the layer's own "
                "argument `valid_lens` or `key_mask`, or `mask.dense(T, S)`",
                array,
            )
