"""Batches for SimCut: duplicated rows, with some tokens of the copies cut."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn.data.arrays import mapped_whole
from tfattn.data.epochs import Dataset
from tfattn.data.noise import uniform
from tfattn.data.rows import check_not_sharded, with_metadata


def simcut_batches(
    batches: Dataset,
    source_vocabulary: Any,
    target_vocabulary: Any,
    rate: float = 0.05,
    seed: int = 0,
) -> Dataset:
    """Duplicates the rows of each batch with some tokens cut, for `training.SimCutCrossentropy`.

    The unknown token replaces a cut token, on both sides of the input; targets are kept. Padding,
    begin and end are never cut. The seed and the ids of the batch determine the cut tokens, which
    therefore differ between epochs of shuffled batches, and are the same in a resumed run.

    Args:
        batches: `tf.data.Dataset` or `keras.utils.PyDataset` of `((source, target_in),
            target_out)`, such as those of `token_batches`.
        source_vocabulary, target_vocabulary: the vocabularies of the ids.
        rate: number in [0, 1), the probability of cutting a token. Defaults to 0.05.
        seed: int of at least 0.
    Returns:
        A dataset of the same type and cardinality, with 2 · B rows per batch of B rows: the second
        half repeats the first, with tokens cut.
    Raises:
        ValueError: `batches` is of another type, or comes from `shard_batches`, which must be
            called last; `rate` is not in [0, 1); `seed` is not an int of at least 0.
    Example:
        >>> words, pairs = tfattn.data.Vocabulary(["a", "b"]), [("a b a a", "b b")]
        >>> batches = tfattn.data.token_batches(pairs, words, words, 8, length_multiple=1)
        >>> cut = simcut_batches(batches, words, words, rate=0.5, seed=1)
        >>> [((source, target_in), target_out)] = cut.as_numpy_iterator()
        >>> print(source)
        [[4 5 4 4 3]
         [4 5 1 1 3]]

    Source: Gao, He, Wu, Wang 2022 ("Bi-SimCut"), arXiv:2206.02368, section 3, where a cut token has
    a vector of zeros; here it has the learned vector of the unknown token.
    """
    who = "simcut_batches"
    vocabularies = {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary}
    for argument, vocabulary in vocabularies.items():
        _checks.vocabulary(who, argument, vocabulary)
    _checks.probability(who, "rate", rate)
    _checks.non_negative_int(who, "seed", seed)
    _checks.seed(who, seed)
    words = list(vocabularies.values())
    is_dataset = _is_pair_of_pair(getattr(batches, "element_spec", None))
    if not is_dataset and not isinstance(batches, keras.utils.PyDataset):
        expected = "be batches of ((source, target_in), target_out), such as those of token_batches"
        _checks.fail(who, "batches", expected, batches)
    check_not_sharded(who, batches)
    cut = functools.partial(_with_cut_rows, words=words, rate=rate, seed=seed)
    return with_metadata(mapped_whole(batches, cut), copies=2)


def _is_pair_of_pair(batch: Any) -> bool:
    pairs = isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[0], tuple)
    return pairs and len(batch[0]) == 2


def _with_cut_rows(
    batch: Any, words: Sequence[Any], rate: float, seed: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    if not _is_pair_of_pair(batch):
        expected = "hold ((source, target_in), target_out), such as those of token_batches"
        _checks.fail("simcut_batches", "batches", expected, type(batch).__name__)
    sides, target_out = batch
    flat = [side.reshape(-1) for side in sides]
    ids = np.concatenate(flat).astype("int64")
    checksum = int(np.sum(ids * np.arange(1, len(ids) + 1)))
    noise = np.split(uniform(seed, checksum, len(ids)), [len(flat[0])])
    cut = [
        _cut(side, drawn, vocabulary, rate)
        for side, drawn, vocabulary in zip(flat, noise, words, strict=True)
    ]
    doubled = (
        np.concatenate([side, other.reshape(side.shape)])
        for side, other in zip(sides, cut, strict=True)
    )
    return tuple(doubled), np.concatenate([target_out, target_out])


def _cut(ids: np.ndarray, noise: np.ndarray, words: Any, rate: float) -> np.ndarray:
    """Replaces ids by the unknown id where noise is below the rate, except special ids."""
    special = (words.padding_id, words.begin_id, words.end_id)
    is_cut = (noise < rate) & ~np.isin(ids, special)
    return np.where(is_cut, words.unknown_id, ids).astype(ids.dtype)
