"""Which epoch it is: the orders of a run that goes on."""

import keras
import numpy as np
import pytest

from tests.batching import FRENCH, MORE_PAIRS, by_tokens, companies
from tests.tensors import BACKEND
from tfattn.data import EpochCounter


@pytest.mark.slow
def test_a_counter_starts_the_epochs_where_it_is_told():
    unbroken = by_tokens(shuffle_seed=7)
    epochs = [companies(unbroken) for _ in range(5)]
    resumed = by_tokens(shuffle_seed=7, epoch_counter=EpochCounter(3))
    assert [companies(resumed) for _ in range(2)] == epochs[3:]


@pytest.mark.slow
def test_a_counter_takes_the_number_of_the_epoch_from_fit():
    unbroken = by_tokens(shuffle_seed=7)
    epochs = [companies(unbroken) for _ in range(3)]
    counter = EpochCounter()
    dataset = by_tokens(shuffle_seed=7, epoch_counter=counter)
    for epoch in (2, 0, 0, 1):
        next(iter(dataset))  # whoever looks into it changes nothing
        counter.on_epoch_begin(epoch)
        assert companies(dataset) == epochs[epoch]


class TargetsAlone(keras.utils.PyDataset):
    """The same batches without their sources."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches
        self.on_epoch_begin, self.on_epoch_end = batches.on_epoch_begin, batches.on_epoch_end

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, place):
        (_, target_in), target_out = self.batches[place]
        return target_in, target_out


class Killed(Exception):
    pass


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_orders_that_it_would_have_had(tmp_path):
    def run(killed_in=None):
        counter, losses = EpochCounter(), []
        dataset = by_tokens(MORE_PAIRS[:101], shuffle_seed=11, epoch_counter=counter)
        model = keras.Sequential(
            [keras.Input((None,)), keras.layers.Embedding(len(FRENCH), len(FRENCH))]
        )
        model.layers[0].set_weights([np.zeros((len(FRENCH), len(FRENCH)))])
        # A rate this high makes each step's loss tell which batches came before.
        model.compile(
            keras.optimizers.SGD(50.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )

        def after_batch(batch, logs):
            losses.append(logs["loss"])
            if killed_in is not None and len(losses) == killed_in:
                raise Killed

        after = keras.callbacks.LambdaCallback(on_train_batch_end=after_batch)
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        if BACKEND == "tensorflow":
            rows = dataset.map(lambda inputs, target_out: (inputs[1], target_out))
        else:
            rows = TargetsAlone(dataset)
        model.fit(rows, epochs=4, shuffle=False, verbose=0, callbacks=[counter, backup, after])
        return losses

    unbroken = run()
    steps = len(unbroken) // 4
    with pytest.raises(Killed):
        run(killed_in=2 * steps + 3)  # amid the third epoch, which the next run repeats
    np.testing.assert_allclose(run(), unbroken[2 * steps :], rtol=1e-4)


@pytest.mark.parametrize("epoch", [-1, 1.5, None])
def test_an_epoch_is_an_integer_of_at_least_0(epoch):
    with pytest.raises(ValueError, match="EpochCounter: `epoch` must be an integer of at least 0"):
        EpochCounter(epoch)
