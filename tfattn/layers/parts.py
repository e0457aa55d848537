"""What layers made of other layers share: configs of parts, seeds of parts, masks that travel,
padding that is broken.
"""

import zlib

import keras
from keras import ops

__all__ = [
    "CarryMask",
    "copy_of",
    "deserialized",
    "padding_mask",
    "part_seed",
    "serialized",
    "without_broken_padding",
]


def serialized(layer):
    """A part's config without the shapes that it was built for: the copy is built by the layer that
    takes it.
    """
    if layer is None:
        return None
    config = keras.saving.serialize_keras_object(layer)
    config.pop("build_config", None)
    return config


def deserialized(config, *names):
    """`config` with the parts of those names made from their configs, where they are there."""
    parts = {
        name: keras.saving.deserialize_keras_object(config[name])
        for name in names
        if name in config
    }
    return {**config, **parts}


def copy_of(layer):
    """A new layer from the same config, with weights of its own; None for None."""
    return None if layer is None else type(layer).from_config(layer.get_config())


def part_seed(seed, name):
    """A seed for the part of that name: with one seed for all, every part would drop the same
    features.
    """
    return None if seed is None else zlib.crc32(f"{seed}/{name}".encode()) >> 1


class CarryMask(keras.layers.Layer):
    """Puts a mask on a tensor. Keras carries the first input's mask on by itself, but not one given
    as an argument.
    """

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.built = True  # it has nothing to build

    def compute_mask(self, inputs, previous_mask=None):
        return inputs[1]

    def call(self, inputs):
        return inputs[0]


def without_broken_padding(tokens, mask):
    """Padding `(B, T, D)` that is not finite becomes zeros.

    Nobody reads what is computed from it, but its gradients would spread: 0 · NaN is NaN.
    """
    return ops.where(ops.logical_or(mask[..., None], ops.isfinite(tokens)), tokens, 0.0)


def padding_mask(ids):
    """True where a token is real: `(B, T)` of ids `(B, T)`."""
    return ops.not_equal(ids, 0)
