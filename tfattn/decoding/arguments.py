"""What the searches take alike: the checks, the settings, and the buffer that is written into."""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn.decoding.state import paths_of_pasts

__all__ = ["Settings", "prepared"]


class Settings(NamedTuple):
    """What a compiled search is compiled for; another value is another compiled function."""

    begin_id: int
    end_id: int
    padding_id: int
    return_state: bool
    drop_done_rows: bool


def prepared(who, step, state, batch_size, max_length, begin_id, end_id, padding_id, return_state):
    """The checked arguments of a search: (settings, start, state in the backend's tensors).

    `start` is the buffer, int32 `(B, 1 + L)` with the begin token in front, and how many tokens
    each row may have, `(B,)`; L is the most of them.
    """
    if not callable(step):
        _checks.fail(who, "step", "be callable, see `tfattn.decoding`", step)
    if not ops.is_tensor(batch_size):
        _checks.positive_int(who, "batch_size", batch_size)
    limits = _limits(who, max_length, batch_size)
    longest = int(np.max(limits))
    settings = Settings(
        _checks.non_negative_int(who, "begin_id", begin_id),
        _checks.non_negative_int(who, "end_id", end_id),
        _checks.non_negative_int(who, "padding_id", padding_id),
        _checks.boolean(who, "return_state", return_state),
        _may_drop_rows(),
    )
    begin = ops.full((batch_size, 1), begin_id, dtype="int32")
    rest = ops.full((batch_size, longest), padding_id, dtype="int32")
    tokens = ops.concatenate([begin, rest], axis=1)
    limits = ops.broadcast_to(ops.convert_to_tensor(limits, dtype="int32"), ops.shape(tokens)[:1])
    state = keras.tree.map_structure(
        lambda leaf: ops.convert_to_tensor(leaf) if _is_array(leaf) else leaf, state
    )
    _check_rows(who, state, tokens.shape[0])
    _check_room(who, state, longest)
    return settings, (tokens, limits), state


def _limits(who, max_length, batch_size):
    """`max_length` as a NumPy integer, or integers `(B,)`."""
    if np.ndim(max_length) == 0:
        return np.int32(_checks.positive_int(who, "max_length", max_length))
    limits = np.asarray(max_length)
    rows = None if ops.is_tensor(batch_size) else batch_size
    if (
        limits.ndim != 1
        or limits.dtype.kind not in "iu"
        or limits.min(initial=1) < 1
        or rows not in (None, len(limits))
    ):
        expected = "be a positive integer, or one for each row" + (
            "" if rows is None else f", `batch_size`={rows} of them"
        )
        _checks.fail(who, "max_length", expected, max_length)
    return limits


def _check_rows(who, state, batch_size):
    for leaf in keras.tree.flatten(state):
        rows = leaf.shape[0] if _is_array(leaf) and len(leaf.shape) else None
        if None not in (rows, batch_size) and rows != batch_size:
            _checks.fail(
                who,
                "state",
                f"hold `batch_size`={batch_size} rows in each tensor",
                tuple(leaf.shape),
            )


def _check_room(who, state, longest):
    pasts = paths_of_pasts(who, state)
    for path, leaf in keras.tree.flatten_with_path(state):
        if path in pasts and leaf.shape[-2] is not None and leaf.shape[-2] < longest:
            expected = f"have room for `max_length`={longest} positions in each `Past`"
            _checks.fail(who, "state", expected, tuple(leaf.shape))


def _is_array(leaf):
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _may_drop_rows():
    # A batch that shrinks has no fixed shape: inside of a function of the caller's, which may be
    # meant for XLA or for export, every row stays to the end.
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return tf.executing_eagerly()
