"""A Transformer whose weights are split over the devices of one process.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python split.py
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import tfattn
from tfattn import training

mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
layout = training.transformer_layout(mesh)
distribution = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
with distribution.scope():
    model = tfattn.Transformer(64, num_layers=1, width=32, num_heads=4, hidden_dim=64)
    model.build(((None, None), (None, None)))
    model.compile("adam", tfattn.MaskedCrossentropy())
    ids = np.random.default_rng(0).integers(1, 64, size=(8, 5))
    model.fit((ids, ids), ids, epochs=3, verbose=2)

kernel = model.encoder.blocks[0].feed_forward.inner.kernel
print(kernel.shape, "with a shard per device of", kernel.value.addressable_shards[0].data.shape)
