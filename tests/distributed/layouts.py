"""Trains models on one device, and split over the eight that a CPU can stand for.

Run as a program with `own` or `shared` it prints the losses and what each device holds of each
variable, of the whole model and of the split one. A process has its devices for good once JAX has
begun.
"""

import json
import os
import sys

# As a program; whoever collects tests imports it too.
if __name__ == "__main__":
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    sys.modules["tensorflow"] = None  # nothing here needs it

import keras  # noqa: E402
import numpy as np  # noqa: E402

import tfattn  # noqa: E402
from tfattn import training  # noqa: E402

V, WIDTH, HEADS, HIDDEN, ROWS, LENGTH = 44, 20, 4, 28, 6, 5


def ids(seed):
    rng = np.random.default_rng(seed)
    real = np.arange(LENGTH) < rng.integers(1, LENGTH + 1, size=(ROWS, 1))
    return np.where(real, rng.integers(1, V, size=(ROWS, LENGTH)), 0).astype("int32")


def trained(share_embeddings=False):
    keras.utils.set_random_seed(0)
    sizes = {"num_layers": 1, "width": WIDTH, "num_heads": HEADS, "hidden_dim": HIDDEN}
    model = tfattn.Transformer(
        V, dropout=0.0, share_embeddings=share_embeddings, name="model", **sizes
    )
    model.build(((None, None), (None, None)))
    model.compile(
        keras.optimizers.Adam(0.01, epsilon=1e-3, name="adam"), tfattn.MaskedCrossentropy(0.1)
    )
    source, target = ids(1), ids(2)
    data = {"batch_size": ROWS, "shuffle": False, "verbose": 0, "epochs": 3}
    losses = model.fit((source, target), target, **data).history["loss"]
    variables = [*model.trainable_variables, *model.optimizer.variables]
    parts = {
        variable.path: [variable.shape, variable.value.addressable_shards[-1].data.shape]
        for variable in variables
    }
    return {"losses": losses, "parts": parts}


def split(share_embeddings, shard_vocabulary):
    mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
    layout = training.transformer_layout(mesh, shard_vocabulary=shard_vocabulary)
    distribution = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    with distribution.scope():
        return trained(share_embeddings)


if __name__ == "__main__":
    is_shared = sys.argv[1] == "shared"
    print(json.dumps([trained(is_shared), split(is_shared, shard_vocabulary=not is_shared)]))
