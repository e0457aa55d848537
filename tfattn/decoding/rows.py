"""A loop on TensorFlow over open rows and written positions only."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfattn._shared import Past
from tfattn._types import Size, Tensor

_STRIDE = 8  # positions by which a `Past` grows

Advance = Callable[..., tuple[Tensor, Any, tuple[Tensor, ...]]]  # a step of the loop


def loop_over_open_rows(
    advance: Advance,
    position: Tensor,
    found: Any,
    changing: tuple[Tensor, ...],
    constants: tuple[Tensor, ...],
    is_past: Sequence[bool],
    keep: bool,
    until: Size,
) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
    """(Position, found, changing) of all rows after the last step; no `changing` unless `keep`.

    An inner loop calls `advance` of (position, found, changing, constants) until a quarter of its
    rows are done, or each `Past` is full. The outer loop then writes all rows to their indices in
    the results, and continues with the open rows and a longer `Past`.
    """
    import tensorflow as tf

    length = tf.shape(found.tokens)[1] - 1
    full_lengths = [
        tf.shape(tensor)[-2] if past else None
        for tensor, past in zip(changing, is_past, strict=True)
    ]

    def any_open(position: Tensor, indices: Tensor, results: Any, rows: Any) -> Tensor:
        return (position < until) & (tf.size(indices) > 0)

    def advance_open_rows(position: Tensor, indices: Tensor, results: Any, rows: Any) -> Any:
        found, changing, constants = rows
        past_length = _past_length(position, length) if any(is_past) else length
        changing = resized_pasts(changing, [past_length if past else None for past in is_past])
        position, found, changing = _advance_while_mostly_open(
            advance, position, found, changing, constants, tf.minimum(past_length, until)
        )
        results = tf.nest.map_structure(
            lambda result, row: (
                tf.tensor_scatter_nd_update(result, indices, row) if row.shape.rank else row
            ),
            results,
            (found, resized_pasts(changing, full_lengths) if keep else ()),
        )
        open_rows = tf.where(tf.logical_not(found.done))[:, 0]
        rows = tf.nest.map_structure(
            lambda row: tf.gather(row, open_rows) if row.shape.rank else row,
            (found, changing, constants),
        )
        return position, tf.gather(indices, open_rows), results, rows

    indices = tf.range(tf.size(found.done))[:, None]
    results = (found, changing if keep else ())
    begun = (position, indices, results, (found, changing, constants))
    *shapes, (found_shapes, _, constant_shapes) = tf.nest.map_structure(_shape_in_loop, begun)
    changing_shapes = tuple(map(_shape_in_loop, changing, is_past))
    invariants = (*shapes, (found_shapes, changing_shapes, constant_shapes))
    position, _, results, _ = tf.while_loop(
        any_open, advance_open_rows, begun, shape_invariants=invariants
    )
    return position, *results


def _advance_while_mostly_open(
    advance: Advance,
    position: Tensor,
    found: Any,
    changing: tuple[Tensor, ...],
    constants: tuple[Tensor, ...],
    until: Tensor,
) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
    """Steps until a quarter of the rows are done, or `until` positions are written."""
    import tensorflow as tf

    def mostly_open(position: Tensor, found: Any, changing: tuple[Tensor, ...]) -> Tensor:
        still_open = tf.math.count_nonzero(tf.logical_not(found.done), dtype="int32")
        return (position < until) & (4 * still_open > 3 * tf.size(found.done))

    def body(*carried: Any) -> Any:
        # A step may lose static shapes, which a loop must keep.
        return tf.nest.map_structure(
            lambda new, old: tf.ensure_shape(new, old.shape), advance(*carried, constants), carried
        )

    return tf.while_loop(mostly_open, body, (position, found, changing))


def _shape_in_loop(tensor: Tensor, is_past: bool = False) -> Tensor:
    """A tensor's static shape with a dynamic number of rows and, for a `Past`, of positions."""
    import tensorflow as tf

    sizes = list(tensor.shape)
    if sizes:
        sizes[0] = None
    if is_past:
        sizes[-2] = None
    return tf.TensorShape(sizes)


def with_written_positions(state: Any, position: Tensor, length: int | Tensor) -> Any:
    """A state in which each `Past` has the positions that a step at `position` gets in the loop."""
    past_length = _past_length(position, length)

    def cut(part: Any) -> Past | None:
        return Past(part.tensor[..., :past_length, :]) if isinstance(part, Past) else None

    return keras.tree.traverse(cut, state)


def _past_length(position: Tensor, length: int | Tensor) -> Tensor:
    """The length of a `Past` at `position`: the written positions and a few more."""
    import tensorflow as tf

    if tf.executing_eagerly():
        # With all sizes known, a step would refuse more tokens than a `Past` has positions.
        return tf.convert_to_tensor(length)
    return tf.minimum(position // _STRIDE * _STRIDE + _STRIDE, length)


def resized_pasts(
    changing: tuple[Tensor, ...], lengths: Sequence[Size | None]
) -> tuple[Tensor, ...]:
    """`changing` with each `Past` cut or padded with zeros to its length; others have None."""
    import tensorflow as tf

    resized = []
    for tensor, past_length in zip(changing, lengths, strict=True):
        if past_length is not None:
            tensor = tensor[..., :past_length, :]
            missing = past_length - tf.shape(tensor)[-2]
            tensor = tf.pad(tensor, [[0, 0]] * (tensor.shape.rank - 2) + [[0, missing], [0, 0]])
        resized.append(tensor)
    return tuple(resized)
