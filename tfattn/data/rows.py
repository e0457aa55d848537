"""Metadata of batches: copies per row, and whether the batches are shards."""

from typing import Any

from tfattn import _checks
from tfattn.data.epochs import Dataset


def with_metadata(batches: Dataset, **metadata: Any) -> Dataset:
    """Sets metadata of the batches.

    Args:
        copies: number of consecutive copies of the rows in each batch.
        is_shard: whether the batches contain the rows of one process only.
    """
    for name, value in metadata.items():
        setattr(batches, name, value)
    return batches


def copies_of(batches: Dataset) -> int:
    """The number of copies of the rows in each batch."""
    return _metadata(batches, "copies", 1)


def check_not_sharded(who: str, batches: Dataset) -> None:
    """Raises if the batches come from `shard_batches`, which must come last."""
    if _metadata(batches, "is_shard", False):
        expected = "not be sharded yet: call `shard_batches` last"
        _checks.fail(who, "batches", expected, batches)


def _metadata(batches: Dataset, name: str, default: Any) -> Any:
    """Metadata of the batches or of their input datasets, since `prefetch` drops attributes."""
    if hasattr(batches, name):
        return getattr(batches, name)
    inputs: Any = getattr(batches, "_inputs", tuple)()  # of a tf.data.Dataset
    return max((_metadata(each, name, default) for each in inputs), default=default)
