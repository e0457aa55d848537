"""Trains a model for some updates, in one process or in several; each writes what it has.

Run as a program: `python updates.py FOLDER MODEL` forks two processes, which so need not import
anything, and is the one process of a job of its own. A process has its backend and its peers for
good once it has begun.
"""

import multiprocessing
import os
import sys

# As a program; whoever collects tests imports it too.
if __name__ == "__main__":
    os.environ["KERAS_BACKEND"] = "jax"
    sys.modules["tensorflow"] = None  # nothing here needs it

import keras  # noqa: E402
import numpy as np  # noqa: E402

import tfattn  # noqa: E402
from tests.distributed import job  # noqa: E402
from tfattn import data, training  # noqa: E402

UPDATES, ROWS, S, T, V = 12, 5, 7, 3, 11


class Batches(keras.utils.PyDataset):
    """Batches of five rows, which do not split in two, of unlike lengths."""

    def __init__(self, of_ids):
        super().__init__()
        rng, self.of_ids = np.random.default_rng(0), of_ids
        self.source = padded(rng, S)
        self.target_in, self.target_out = padded(rng, T), padded(rng, T)
        self.target_in[:, 0] = np.maximum(self.target_in[:, 0], 1)
        self.vectors = rng.normal(size=(UPDATES, ROWS, T, 2)).astype("float32")

    def __len__(self):
        return UPDATES

    def __getitem__(self, i):
        inputs = (self.source[i], self.target_in[i]) if self.of_ids else self.vectors[i]
        return inputs, self.target_out[i]


def padded(rng, length):
    ids = rng.integers(1, V, size=(UPDATES, ROWS, length)).astype("int32")
    lengths = rng.integers(0, length + 1, size=(UPDATES, ROWS, 1))
    return np.where(np.arange(length) < lengths, ids, 0)


def new_model(name):
    keras.utils.set_random_seed(0)
    if name == "bahdanau":
        model = tfattn.BahdanauSeq2Seq(V, width=4, units=5)
    else:
        sizes = {"num_layers": 1, "width": 6, "num_heads": 2, "hidden_dim": 13}
        model = tfattn.Transformer(V, dropout=0.0, share_embeddings=True, **sizes)
    model.build(((None, None), (None, None)))
    return model


class Seen(keras.callbacks.Callback):
    """Logs a sum of the weights that it is shown."""

    def on_epoch_end(self, epoch, logs=None):
        logs["seen"] = sum(float(np.abs(weight).sum()) for weight in self.model.get_weights())


def trained(name, num_shards, shard):
    model = new_model(name)
    model.compile(
        keras.optimizers.Adam(0.01, epsilon=1e-3, use_ema=True, ema_momentum=0.9),
        tfattn.MaskedCrossentropy(0.1),
        metrics=[tfattn.MaskedAccuracy(name="accuracy")],
    )
    shards = data.shard_batches(Batches(of_ids=True), num_shards, shard)
    held_out = shards if name == "transformer" else None
    averaged = training.AveragedWeights([Seen()])
    options = {"validation_data": held_out, "callbacks": [averaged], "verbose": 0, "shuffle": False}
    logs = model.fit(shards, **options).history
    return {key: values[0] for key, values in logs.items()}, model.get_weights()


def dense_model():
    model = keras.Sequential([keras.Input((None, 2)), keras.layers.Dense(2 * V)])
    model.compile("adam", tfattn.MaskedCrossentropy())
    return model


def split_over_processes(folder):
    """What a process has of a matrix that two share: trained, and as a backup gives it back.

    Seeds are not set anew: both processes have drawn as many until here.
    """
    mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"))
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*kernel"] = (None, "model")
    parts = []
    with keras.distribution.ModelParallel(layout_map=layout, auto_shard_dataset=False).scope():
        for _ in range(2):
            model = dense_model()
            backup = training.Backup(f"{folder}/split.backup")
            options = {"initial_epoch": backup.epoch, "epochs": 1, "callbacks": [backup]}
            model.fit(Batches(of_ids=False), verbose=0, shuffle=False, **options)
            parts.append(np.array(model.layers[0].kernel.value.addressable_shards[0].data))
    return {"split/trained": parts[0], "split/restored": parts[1]}


def main(folder, name, address=None, processes=1, process=0):
    if address:
        keras.distribution.initialize(address, processes, process)
        keras.distribution.set_distribution(
            keras.distribution.DataParallel(auto_shard_dataset=False)
        )
    logs, weights = trained(name, processes, process)
    found = {f"{name}/{key}": value for key, value in logs.items()}
    found.update({f"{name}/{i}": weight for i, weight in enumerate(weights)})
    if processes > 1 and name == "transformer":
        found.update(split_over_processes(folder))
    np.savez(f"{folder}/{processes}.{process}.npz", **found)
    if address:
        import jax

        jax.distributed.shutdown()  # waits for the peer, which would not outlive the first process


if __name__ == "__main__":
    fork, address = multiprocessing.get_context("fork"), job.launching.free_address()
    peers = [fork.Process(target=main, args=(*sys.argv[1:], address, 2, i)) for i in range(2)]
    for peer in peers:
        peer.start()
    for peer in peers:
        peer.join()
    main(*sys.argv[1:])
    sys.exit(any(peer.exitcode for peer in peers))
