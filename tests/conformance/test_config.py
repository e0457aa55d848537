"""Configs: complete, plain enough for JSON, and enough to make the same layer again."""

import inspect
import json

import keras
import pytest

from tests.conformance.table import ALL, Regressor, named

# Keras's models look for `output_shape` on their layers and read it as another thing.
NO_ATTRIBUTE = {("MultiHeadAttention", "output_shape")}


def constructor_arguments(cls):
    parameters = inspect.signature(cls.__init__).parameters.values()
    return [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]


@pytest.mark.parametrize(**named(ALL))
def test_config_makes_a_layer_with_the_same_config(row):
    config = row.make().get_config()
    assert row.cls.from_config(config).get_config() == config


@pytest.mark.parametrize(**named(ALL))
def test_making_a_layer_leaves_its_config_as_it_was(row):
    config = row.make().get_config()
    before = json.dumps(config)
    row.cls.from_config(config)
    assert json.dumps(config) == before


@pytest.mark.parametrize(**named(ALL))
def test_config_survives_json(row):
    config = row.make().get_config()
    again = json.loads(json.dumps(config))
    assert again == config
    assert row.cls.from_config(again).get_config() == config


@pytest.mark.parametrize(**named(ALL))
def test_serialized_layer_comes_back_without_custom_objects(row):
    layer = row.make()
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(again) is type(layer)
    assert again.get_config() == layer.get_config()
    assert keras.saving.get_registered_name(row.cls) == f"tfattn>{row.cls.__name__}"


@pytest.mark.parametrize(**named(ALL))
def test_config_is_the_same_before_and_after_build(row):
    layer = row.make()
    before = layer.get_config()
    if row is Regressor:
        row.fit(layer)
    else:
        row.call(layer, row.arrays())
    assert layer.built
    assert layer.get_config() == before


@pytest.mark.parametrize(**named(ALL))
def test_every_constructor_argument_is_an_attribute_and_in_the_config(row):
    layer = row.make()
    config = layer.get_config()
    for argument in constructor_arguments(row.cls):
        assert argument in config
        if (row.cls.__name__, argument) in NO_ATTRIBUTE:
            continue
        assert hasattr(layer, argument)
        if isinstance(config[argument], (int, float, bool)):
            assert getattr(layer, argument) == config[argument]


@pytest.mark.parametrize(**named(ALL))
def test_name_dtype_and_trainable_survive(row):
    layer = row.make(name="its_name", dtype="mixed_bfloat16", trainable=False)
    again = row.cls.from_config(json.loads(json.dumps(layer.get_config())))
    for each in (layer, again):
        assert each.name == "its_name"
        assert each.dtype_policy.name == "mixed_bfloat16"
        assert each.trainable is False
