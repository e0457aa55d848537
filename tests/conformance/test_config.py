"""Configs: complete, JSON-serializable, and sufficient to restore the layer."""

import inspect
import json

import keras
import pytest

import tfattn
from tests.conformance.table import ATTENTION, ROWS, first_of_each_class, named
from tfattn._arguments import constructor_arguments as kept_arguments

# Keras models use the name `output_shape` for another attribute of layers.
NO_ATTRIBUTE = {("MultiHeadAttention", "output_shape")}


def constructor_arguments(cls):
    parameters = inspect.signature(cls.__init__).parameters.values()
    return [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]


@pytest.mark.parametrize(**named(ROWS))
def test_config_is_complete_and_makes_the_same_layer(row):
    layer = row.make()
    config = layer.get_config()
    for argument in constructor_arguments(row.cls):
        assert argument in config
        if (row.cls.__name__, argument) in NO_ATTRIBUTE:
            continue
        assert hasattr(layer, argument)
        if isinstance(config[argument], (int, float, bool)):
            assert getattr(layer, argument) == config[argument]

    written = json.dumps(config)
    read = json.loads(written)
    assert read == config
    assert row.cls.from_config(read).get_config() == config
    assert json.dumps(read) == written, "from_config changed the config"

    assert keras.saving.get_registered_name(row.cls) == f"tfattn>{row.cls.__name__}"
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(again) is type(layer)
    assert again.get_config() == config

    if row in first_of_each_class():
        row.call(layer, row.arrays())
        assert layer.built
        assert layer.get_config() == config


# Other values than the table's rows and the defaults; functions make layers.
OTHERS = {
    "attention_axes": [1],
    "bandwidth": 0.9,
    "bias_constraint": "non_neg",
    "bias_initializer": "ones",
    "bias_regularizer": "l2",
    "dropout": 0.7,
    "flash_attention": False,
    "kernel": "boxcar",
    "kernel_constraint": "non_neg",
    "kernel_initializer": "ones",
    "kernel_regularizer": "l2",
    "leave_one_out": True,
    "normalizer": tfattn.Sparsemax,
    "num_key_value_heads": 1,
    "output_kernel_initializer": "ones",
    "positions": lambda: tfattn.RotaryPositions(base=99.0),
    "scale": 0.9,
    "score": lambda: tfattn.CosineScore(0.3),
    "trainable_bandwidth": False,
    "use_bias": False,
    "use_gate": True,
}
OF_THE_SCORE = (  # whose score is made from other arguments
    tfattn.DotProductAttention,
    tfattn.AdditiveAttention,
    tfattn.BilinearAttention,
    tfattn.NadarayaWatson,
)


@pytest.mark.parametrize("cls", {row.cls: row for row in ATTENTION}, ids=lambda cls: cls.__name__)
def test_config_of_attention_keeps_every_argument(cls):
    make = next(row for row in ATTENTION if row.cls is cls).make
    make = cls if cls is tfattn.Attention else make
    names = {*constructor_arguments(cls), *kept_arguments(make())}
    for name in names - ({"score"} if cls in OF_THE_SCORE else set()):
        other = OTHERS.get(name, 45)
        made = make(**{name: other() if callable(other) else other})
        config = json.loads(json.dumps(made.get_config()))
        assert config[name] != make().get_config()[name]
        assert json.loads(json.dumps(cls.from_config(config).get_config())) == config


@pytest.mark.parametrize(**named(ROWS))
def test_config_keeps_name_dtype_and_trainable(row):
    layer = row.make(name="its_name", dtype="mixed_bfloat16", trainable=False)
    again = row.cls.from_config(json.loads(json.dumps(layer.get_config())))
    for each in (layer, again):
        assert each.name == "its_name"
        assert each.dtype_policy.name == "mixed_bfloat16"
        assert each.trainable is False
    by_policy = row.make(dtype=keras.DTypePolicy("mixed_float16"))
    assert by_policy.compute_dtype == "float16"
