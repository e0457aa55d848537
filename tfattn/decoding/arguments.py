"""The arguments that every search takes: their checks, and what they become."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Step, Tensor
from tfattn.decoding.state import paths_of_pasts

__all__ = ["Ids", "Settings", "Start", "checked_arguments", "checked_limits"]


class Ids(NamedTuple):
    """The tokens that mean something to a search."""

    begin_id: int = 2
    end_id: int = 3
    padding_id: int = 0


class Settings(NamedTuple):
    """What a search is compiled for: another value is another compiled function."""

    begin_id: int
    end_id: int
    padding_id: int
    return_state: bool
    drop_done_rows: bool

    @property
    def ids(self) -> Ids:
        return Ids(self.begin_id, self.end_id, self.padding_id)


class Start(NamedTuple):
    """What a search begins with."""

    tokens: Tensor  # int32 (B, 1 + L), the begin token, then padding
    limits: Tensor  # int32 (B,), most tokens of each row; L is the greatest


def checked_arguments(
    who: str,
    step: Step,
    state: Any,
    batch_size: int | Tensor,
    max_length: int | Sequence[int],
    ids: Ids,
    return_state: bool,
) -> tuple[Settings, Start, Any]:
    """(settings, start, the state in the backend's tensors), from the arguments of a search."""
    if not callable(step):
        _checks.fail(who, "step", "be callable, see `tfattn.decoding`", step)
    if not ops.is_tensor(batch_size):
        _checks.positive_int(who, "batch_size", batch_size)
    limits = checked_limits(who, max_length, batch_size)
    longest = int(np.max(limits))
    drop_done_rows = keras.backend.backend() == "tensorflow"
    if drop_done_rows:
        import tensorflow as tf

        # A batch that shrinks has no fixed shape. A function of the caller's may be meant for XLA
        # or for export, so inside of one every row stays to the end.
        drop_done_rows = tf.executing_eagerly()
    settings = Settings(
        *(_checks.non_negative_int(who, name, token) for name, token in ids._asdict().items()),
        _checks.boolean(who, "return_state", return_state),
        drop_done_rows,
    )
    begin = ops.full((batch_size, 1), ids.begin_id, dtype="int32")
    rest = ops.full((batch_size, longest), ids.padding_id, dtype="int32")
    tokens = ops.concatenate([begin, rest], axis=1)
    limits = ops.broadcast_to(ops.convert_to_tensor(limits, dtype="int32"), ops.shape(tokens)[:1])
    return settings, Start(tokens, limits), _checked_state(who, state, tokens.shape[0], longest)


def checked_limits(
    who: str, max_length: int | Sequence[int], batch_size: int | Tensor
) -> np.integer | np.ndarray:
    """`max_length` as a NumPy integer, or integers `(B,)`."""
    if not isinstance(max_length, list | tuple) and np.ndim(max_length) == 0:
        return np.int32(_checks.positive_int(who, "max_length", max_length))
    try:
        limits = np.asarray(max_length)
    except ValueError:  # rows of several lengths
        limits = np.asarray(None)
    rows = None if ops.is_tensor(batch_size) else batch_size
    positive_ints = limits.dtype.kind in "iu" and limits.min(initial=1) >= 1
    if limits.ndim != 1 or not positive_ints or rows not in (None, len(limits)):
        expected = "be a positive integer, or one for each row"
        if rows is not None:
            expected += f", `batch_size`={rows} of them"
        _checks.fail(who, "max_length", expected, max_length)
    return limits


def _checked_state(who: str, state: Any, batch_size: int | None, longest: int) -> Any:
    """The state in the backend's tensors, with `batch_size` rows and room for `longest` tokens."""
    state = keras.tree.map_structure(
        lambda leaf: (
            ops.convert_to_tensor(leaf)
            if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
            else leaf
        ),
        state,
    )
    tensors = [leaf for leaf in keras.tree.flatten(state) if ops.is_tensor(leaf)]
    for shape in (tuple(tensor.shape) for tensor in tensors):
        if shape and None not in (shape[0], batch_size) and shape[0] != batch_size:
            expected = f"hold `batch_size`={batch_size} rows in each tensor"
            _checks.fail(who, "state", expected, shape)
    pasts = paths_of_pasts(who, state)
    for path, leaf in keras.tree.flatten_with_path(state):
        if path in pasts and leaf.shape[-2] is not None and leaf.shape[-2] < longest:
            expected = f"have room for `max_length`={longest} positions in each `Past`"
            _checks.fail(who, "state", expected, tuple(leaf.shape))
    return state
