"""Rows of a batch for each of several processes."""

import keras
import numpy as np
import pytest

from tests.helpers.tensors import BACKEND, tf
from tfattn import data

ROWS, LENGTH = 7, 3
IDS = np.arange(1, ROWS * LENGTH + 1, dtype="int32").reshape(ROWS, LENGTH)


class Batches(keras.utils.PyDataset):
    """Those of a list."""

    def __init__(self, batches, **options):
        super().__init__(**options)
        self.batches, self.heard = batches, []

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, i):
        return self.batches[i]

    def on_epoch_begin(self):
        self.heard.append("begin")

    def on_epoch_end(self):
        self.heard.append("end")


TWO = [((IDS + i, IDS[:, :2]), IDS[:, 0]) for i in range(2)]


def of_tensorflow():
    first, second = (tf.data.Dataset.from_tensors(batch) for batch in TWO)
    return first.concatenate(second)


KINDS = {"PyDataset": lambda: Batches(TWO)}
if BACKEND == "tensorflow":
    KINDS["tf.data"] = of_tensorflow


def batches_of(dataset):
    return list(dataset.as_numpy_iterator() if hasattr(dataset, "as_numpy_iterator") else dataset)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("num_shards", "row_multiple", "size"), [(2, 1, 4), (2, 3, 6), (11, 1, 1)])
def test_shards_side_by_side_are_the_batch_and_rows_of_zeros(make, num_shards, row_multiple, size):
    shards = [
        batches_of(data.shard_batches(make(), num_shards, shard, row_multiple))
        for shard in range(num_shards)
    ]
    assert len(data.shard_batches(make(), num_shards, 0)) == 2
    for number, whole in enumerate(batches_of(make())):
        leaves = [keras.tree.flatten(shard[number]) for shard in shards]
        for array, parts in zip(keras.tree.flatten(whole), zip(*leaves, strict=True), strict=True):
            assert {len(part) for part in parts} == {size}
            joined = np.concatenate(parts)
            np.testing.assert_array_equal(joined[:ROWS], array)
            assert not joined[ROWS:].any() and joined.dtype == array.dtype
        keras.tree.assert_same_structure(whole, shards[0][number])


def test_shards_of_a_py_dataset_hear_of_epochs():
    batches = Batches(TWO)
    shards = data.shard_batches(batches, 2, 0)
    shards.on_epoch_begin()
    shards.on_epoch_end()
    assert batches.heard == ["begin", "end"]


def test_shards_shuffle_with_the_batches_that_they_are_of(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    words = data.Vocabulary([f"w{i}" for i in range(13)])
    pairs = [(f"w{i}", f"w{i}") for i in range(13)]

    def batches():
        return data.translation_batches(pairs, words, words, 3, shuffle_seed=0)

    whole, shards = batches(), data.shard_batches(batches(), 2, 1)
    epochs = []
    for gone_through in (iter, type(shards).as_numpy_iterator, iter):
        found = [
            ((source, target_in), target) for (source, target_in), target in gone_through(shards)
        ]
        for ours, theirs in zip(found, whole, strict=True):
            for part, array in zip(*map(keras.tree.flatten, (ours, theirs)), strict=True):
                array = np.concatenate([array, 0 * array])[-(-len(array) // 2) :]
                np.testing.assert_array_equal(part, array[: len(part)])
        epochs.append([source.tolist() for (source, _), _ in found])
    assert epochs[0] != epochs[1] != epochs[2]


def test_shards_beyond_the_last_are_refused():
    said = "shard_batches: `shard` must be below `num_shards`=2. Received: shard=2"
    with pytest.raises(ValueError, match=said):
        data.shard_batches(Batches(TWO), 2, 2)
