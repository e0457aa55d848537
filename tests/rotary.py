"""Positions of a user: heads turned pair by pair, an angle for each position."""

import keras
from keras import ops

from tests.reference import TURNS
from tfattn.layers.positions.base import HeadPositions


@keras.saving.register_keras_serializable("tests")
class Rotary(HeadPositions):
    """Features 2j and 2j + 1 turn by position · speed^j radians; see `reference.turned`."""

    def __init__(self, speed=TURNS, **kwargs):
        super().__init__(**kwargs)
        self.speed = speed

    def turn(self, heads, start):
        tokens, width = ops.shape(heads)[2], heads.shape[-1]
        at = ops.cast(ops.arange(tokens, dtype="int32") + start, "float32")
        angles = at[:, None] * self.speed ** ops.arange(width // 2, dtype="float32")  # (T, P/2)
        cos, sin = ops.cos(angles), ops.sin(angles)
        pairs = ops.cast(ops.reshape(heads, (*ops.shape(heads)[:3], width // 2, 2)), "float32")
        a, b = pairs[..., 0], pairs[..., 1]  # (B, H, T, P/2)
        turned = ops.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)
        return ops.cast(ops.reshape(turned, ops.shape(heads)), heads.dtype)

    def get_config(self):
        return {**super().get_config(), "speed": self.speed}
