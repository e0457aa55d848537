"""Configs: complete, JSON-serializable, and sufficient to restore the layer."""

import inspect
import json

import keras
import pytest

from tests.conformance.table import ALL, Regressor, named

# Keras models use the name `output_shape` for another attribute of layers.
NO_ATTRIBUTE = {("MultiHeadAttention", "output_shape")}


def constructor_arguments(cls):
    parameters = inspect.signature(cls.__init__).parameters.values()
    return [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]


@pytest.mark.parametrize(**named(ALL))
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

    if row is Regressor:
        row.fit(layer)
    else:
        row.call(layer, row.arrays())
    assert layer.built
    assert layer.get_config() == config


@pytest.mark.parametrize(**named(ALL))
def test_name_dtype_and_trainable_survive(row):
    layer = row.make(name="its_name", dtype="mixed_bfloat16", trainable=False)
    again = row.cls.from_config(json.loads(json.dumps(layer.get_config())))
    for each in (layer, again):
        assert each.name == "its_name"
        assert each.dtype_policy.name == "mixed_bfloat16"
        assert each.trainable is False
    by_policy = row.make(dtype=keras.DTypePolicy("mixed_float16"))
    assert by_policy.compute_dtype == "float16"
