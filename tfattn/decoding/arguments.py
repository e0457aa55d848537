"""What the searches take alike: the checks, the settings, and the buffer that is written into."""

from typing import NamedTuple

import keras
from keras import ops

from tfattn import _checks

__all__ = ["Settings", "prepared"]


class Settings(NamedTuple):
    """What a compiled search is compiled for; another value is another compiled function."""

    begin_id: int
    end_id: int
    padding_id: int
    return_state: bool
    drop_done_rows: bool


def prepared(who, step, state, batch_size, max_length, begin_id, end_id, padding_id, return_state):
    """The checked arguments of a search as (settings, tokens `(B, 1 + max_length)`, state in the backend's tensors)."""
    if not callable(step):
        _checks.fail(who, "step", "be callable, see `tfattn.decoding`", step)
    if not hasattr(batch_size, "dtype"):
        _checks.positive_int(who, "batch_size", batch_size)
    _checks.positive_int(who, "max_length", max_length)
    settings = Settings(
        _checks.non_negative_int(who, "begin_id", begin_id),
        _checks.non_negative_int(who, "end_id", end_id),
        _checks.non_negative_int(who, "padding_id", padding_id),
        _checks.boolean(who, "return_state", return_state),
        _may_drop_rows(),
    )
    begin = ops.full((batch_size, 1), begin_id, dtype="int32")
    rest = ops.full((batch_size, max_length), padding_id, dtype="int32")
    tokens = ops.concatenate([begin, rest], axis=1)
    state = keras.tree.map_structure(lambda leaf: ops.convert_to_tensor(leaf) if _is_array(leaf) else leaf, state)
    _check_rows(who, state, tokens.shape[0])
    return settings, tokens, state


def _check_rows(who, state, batch_size):
    for leaf in keras.tree.flatten(state):
        rows = leaf.shape[0] if _is_array(leaf) and len(leaf.shape) else None
        if None not in (rows, batch_size) and rows != batch_size:
            _checks.fail(who, "state", f"hold `batch_size`={batch_size} rows in each tensor", tuple(leaf.shape))


def _is_array(leaf):
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _may_drop_rows():
    # A batch that shrinks has no fixed shape: inside of a function of the caller's, which may be meant for XLA or for
    # export, every row stays to the end.
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return tf.executing_eagerly()
