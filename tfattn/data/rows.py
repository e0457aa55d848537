"""What is known of the rows of batches: how often they come, and whether all are there."""

from typing import Any

from tfattn import _checks
from tfattn.data.epochs import Dataset

__all__ = ["check_whole", "copies_of", "marked"]


def marked(batches: Dataset, **about: Any) -> Dataset:
    """The same batches, of which `copies` or `is_shard` is known.

    Args:
        copies: how often the rows of a batch are in it, one copy after the other.
        is_shard: whether a batch has no more than the rows of one process.
    """
    for name, value in about.items():
        setattr(batches, name, value)
    return batches


def copies_of(batches: Dataset) -> int:
    """How often the rows of a batch are in it."""
    return _known(batches, "copies", 1)


def check_whole(who: str, batches: Dataset) -> None:
    """Raises where rows are to be repeated that `shard_batches` has taken already."""
    if _known(batches, "is_shard", False):
        expected = "be whole: repeat the rows first, then `shard_batches`"
        _checks.fail(who, "batches", expected, batches)


def _known(batches: Dataset, name: str, otherwise: Any) -> Any:
    """What is known of them, or of what they are made of: `prefetch` makes another dataset."""
    if hasattr(batches, name):
        return getattr(batches, name)
    inputs = getattr(batches, "_inputs", tuple)()  # those of a tf.data.Dataset
    return max((_known(each, name, otherwise) for each in inputs), default=otherwise)
