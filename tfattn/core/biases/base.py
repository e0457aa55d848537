"""The base class of biases."""

from collections.abc import Callable
from typing import Any

from tfattn._types import Size, Tensor
from tfattn.core.masks.grid import Grid
from tfattn.core.objects import GridFunction, registered_in

# The function of `+`, filled in by `arrays` to avoid a circular import.
OPERATORS: dict[str, Callable[..., "Bias"]] = {}


class Bias(GridFunction):
    """Numbers added to the scores before the softmax, for any rectangle of the T × S matrix.

        weights = softmax over keys of (score(query, key) + on(grid, *parameters()))

    A bias is a class with the method `on`. If its constructor has arguments, it also needs
    attributes of the same names, to be saved. If it has tensors that get gradients, it also needs
    `parameters`.

    `tfattn.attend` relies on the following:

    - It calls `on(grid, *parameters)` with tensors of the number, order, shapes and dtypes of
      `parameters()`. They may be others than the object's own (symbolic ones, in a traced
      function), so `on` computes from its arguments.
    - `on` is a pure function of the grid, of these arguments and of the object's state: called once
      per block, in any order, inside loops, and again for the backward pass. It builds nothing of
      size T × S.
    - It returns floats, of rank 2 `(t, s)`, 3 `(B, t, s)` or 4 `(B, H, t, s)`, with size 1 where it
      repeats. `attend` casts them to the dtype of the scores. A rectangle may reach beyond the
      matrix, where its bias is discarded, and must be finite.
    - The gradient of a parameter is added up block by block, so a bias needs no code for gradients
      where `on` is made of differentiable operations. A parameter that is not a float gets none.
      The streamed path refuses a variable that `on` reads and `parameters` leaves out.

    Attributes:
        differs_by_head: whether the bias may differ from head to head. `on` then returns four axes,
            and the second has size H. Where it is False, heads can be computed separately.
        splits_by_head: whether `on` returns the heads of the grid alone, cut out of its tensors by
            `grid.heads_of`. Then too heads can be computed separately, and blocks need less memory.
        is_of_distance: whether the bias depends on the difference of positions alone. Then all
            blocks along a diagonal are the same.
    Example: a penalty on keys that come after the query.
        >>> class Later(biases.Bias):
        ...     def on(self, grid):
        ...         distance = grid.key_positions() - grid.query_positions()  # (t, s)
        ...         return keras.ops.where(distance > 0, -1.0, 0.0)
        >>> print(np.asarray(Later().dense(2, 2)))
        [[ 0. -1.]
         [ 0.  0.]]
    """

    differs_by_head: bool = False
    splits_by_head: bool = False
    is_of_distance: bool = False

    _hooks = ("has_factors", "is_of_distance", "splits_by_head")

    def on(self, grid: Grid, *parameters: Any) -> Tensor:
        """The bias of the pairs of `grid`: float, broadcastable to `(B, t, s)` or `(B, H, t, s)`.

        A bias that holds an array cuts this rectangle out of it with `grid.batch_of`,
        `grid.rows_of` and `grid.columns_of`, and the heads with `grid.heads_of`.
        """
        raise NotImplementedError

    def has_factors(self, grid: Grid) -> bool | Tensor:
        """Whether `factors` is known to be the bias of all of `grid`: a bool or a scalar tensor."""
        return False

    def factors(self, grid: Grid, *parameters: Any) -> tuple[Tensor, Tensor]:
        """The bias of `grid` as a product of a few features of its queries and of its keys.

            on(grid, *parameters)[h, q, k] = Σ_f left[h, q, f] · right[k, f]

        The engine appends them to the operands of a dot product, which then includes the bias, so
        no bias matrix is held.

        Returns:
            `left` `(H or 1, t, f)` and `right` `(s, f)`, float; `right` depends on no parameters.
        """
        raise NotImplementedError

    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors, or variables read once per call, that get gradients."""
        return ()

    def dense(self, num_queries: Size, num_keys: Size) -> Tensor:
        """The whole bias as a float tensor, broadcastable to `(B, T, S)` or `(B, H, T, S)`."""
        return self.on(Grid.whole(num_queries, num_keys), *self.parameters())

    def __add__(self, other: Any) -> "Bias":
        return OPERATORS["+"](self, other)

    def __radd__(self, other: Any) -> "Bias":
        return OPERATORS["+"](other, self)


# Class decorator: saved files name the bias `tfattn>biases.<class name>`.
registered = registered_in("biases")
