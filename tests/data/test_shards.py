"""Rows of a batch for each of several processes."""

import keras
import numpy as np
import pytest

from tests.helpers.tensors import BACKEND, as_tensor, tf
from tfattn import data
from tfattn.training.simcut import has_duplicated_rows

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


@pytest.mark.tensorflow
def test_shards_of_single_arrays_are_rows_of_them():
    dataset = tf.data.Dataset.from_tensors(IDS)
    (rows,) = data.shard_batches(dataset, 2, 1).as_numpy_iterator()
    np.testing.assert_array_equal(rows, [*IDS[4:], [0] * LENGTH])


def test_shards_of_a_py_dataset_keep_workers_and_hear_of_epochs():
    batches = Batches(TWO, workers=2, max_queue_size=5)
    shards = data.shard_batches(batches, 2, 0)
    assert (shards.workers, shards.max_queue_size) == (2, 5) and shards.num_batches == 2
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


WORDS = data.Vocabulary(["a", "b"])


def repeated(batches):
    return data.simcut_batches(batches, WORDS, WORDS, rate=0.5)


FIVE = [("a b", "b"), ("b", "a a b"), ("a", "b b"), ("b b a", "a"), ("a a", "b a")]


def batch_of_five(kind):
    batches = data.translation_batches(FIVE, WORDS, WORDS, 5)
    return (
        Batches(list(batches.as_numpy_iterator())) if kind == "PyDataset" else batches.prefetch(1)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("num_shards", "row_multiple"), [(3, 1), (2, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_paired_rows_stay_paired_over_all_shards(kind, num_shards, row_multiple):
    def doubled():
        batches = repeated(batch_of_five(kind))
        return batches if kind == "PyDataset" else batches.prefetch(1)

    shards = [
        batches_of(data.shard_batches(doubled(), num_shards, shard, row_multiple))[0]
        for shard in range(num_shards)
    ]
    (source, _), target = keras.tree.map_structure(lambda *parts: np.concatenate(parts), *shards)
    [((whole, _), targets)] = batches_of(doubled())
    half = len(target) // 2
    assert has_duplicated_rows(as_tensor(target)) and half % (num_shards * row_multiple) == 0
    for rows, wanted in ((source, whole), (target, targets)):
        for part, copy in zip(np.split(rows, 2), np.split(wanted, 2), strict=True):
            np.testing.assert_array_equal(part[:5], copy)
            assert not part[5:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_process_are_not_repeated(kind):
    shards = data.shard_batches(batch_of_five(kind), 2, 0)
    with pytest.raises(ValueError, match="must not be sharded yet: call `shard_batches` last"):
        repeated(shards if kind == "PyDataset" else shards.take(1))


def test_shards_of_sample_weights_of_none_stay_none():
    assert data.shard_batches(Batches([(IDS, IDS[:, 0], None)]), 2, 1)[0][2] is None
