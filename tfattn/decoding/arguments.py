"""The arguments that every search takes: their types and checks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.state import paths_of_pasts


class Ids(NamedTuple):
    """The ids of the special tokens."""

    begin_id: int = 2
    end_id: int = 3
    padding_id: int = 0


class Settings(NamedTuple):
    """The options of a run that are part of the compiled function."""

    begin_id: int
    end_id: int
    padding_id: int
    return_state: bool
    drop_done_rows: bool


class Start(NamedTuple):
    """The tensors that a search starts from."""

    tokens: Tensor  # int32 (B, 1 + L), the begin token, then padding
    limits: Tensor  # int32 (B,), the maximum length of each row; L is the greatest
    extra: dict[str, Tensor]  # the search's own tensors (B, ...), from `Search.start`


def checked_settings(who: str, ids: Ids, return_state: bool, jit_compile: bool) -> Settings:
    """The settings of a run."""
    drop_done_rows = keras.backend.backend() == "tensorflow" and not jit_compile
    if drop_done_rows:
        import tensorflow as tf

        # A shrinking batch has no fixed shape, which XLA and exports need: inside a function of the
        # caller no row is dropped.
        drop_done_rows = tf.executing_eagerly()
    tokens = ids._asdict().items()
    ids = Ids(*(_checks.non_negative_int(who, name, token) for name, token in tokens))
    return Settings(*ids, _checks.boolean(who, "return_state", return_state), drop_done_rows)


def checked_limits(
    who: str, max_length: int | Sequence[int] | np.ndarray, batch_size: int | Tensor
) -> np.integer | np.ndarray:
    """`max_length` as a NumPy integer, or integers `(B,)`."""
    if not isinstance(max_length, list | tuple) and np.ndim(max_length) == 0:
        return np.int32(_checks.positive_int(who, "max_length", max_length))
    try:
        limits = np.asarray(max_length)
    except ValueError:  # a ragged list
        limits = np.asarray(None)
    rows = None if ops.is_tensor(batch_size) else batch_size
    positive_ints = limits.dtype.kind in "iu" and limits.min(initial=1) >= 1
    if limits.ndim != 1 or not positive_ints or rows not in (None, len(limits)):
        expected = "be a positive integer, or one for each row"
        if rows is not None:
            expected += f", with `batch_size`={rows}"
        _checks.fail(who, "max_length", expected, max_length)
    return limits


def checked_state(who: str, state: Any, batch_size: int | None, longest: int) -> Any:
    """The state with the backend's tensors, checked for `batch_size` rows and `longest` tokens."""
    pasts, leaves = paths_of_pasts(who, state), []
    for path, leaf in keras.tree.flatten_with_path(state):
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            leaf = ops.convert_to_tensor(leaf)
            shape = tuple(leaf.shape)
            if shape and None not in (shape[0], batch_size) and shape[0] != batch_size:
                expected = f"hold `batch_size`={batch_size} rows in each tensor"
                _checks.fail(who, "state", expected, shape)
            if path in pasts and shape[-2] is not None and shape[-2] < longest:
                expected = f"have room for `max_length`={longest} positions in each `Past`"
                _checks.fail(who, "state", expected, shape)
        leaves.append(leaf)
    return keras.tree.pack_sequence_as(state, leaves)
