"""Every public layer has a row in the table."""

import inspect

import pytest

import tfattn
from tests.conformance.paths import BOTH
from tests.conformance.table import ALL, SAVED, public_layers

CLASSES = {row.cls for row in ALL}


@pytest.mark.parametrize("cls", public_layers(), ids=lambda cls: cls.__name__)
def test_every_public_layer_and_model_has_a_row(cls):
    assert cls in CLASSES, f"add a row for {cls.__name__} to tests/conformance/table.py"


def test_every_public_position_within_attention_is_in_a_row():
    public = {getattr(tfattn, name) for name in tfattn.__all__}
    wanted = {cls for cls in public if inspect.isclass(cls)}
    wanted = {cls for cls in wanted if issubclass(cls, tfattn.HeadPositions)}
    rows = [row.make() for row in ALL if row.cls is tfattn.MultiHeadAttention]
    assert {type(layer.positions) for layer in rows} >= wanted - {tfattn.HeadPositions}
    assert len(wanted) > 1


def test_every_public_normalizer_is_in_a_row():
    public = {getattr(tfattn, name) for name in tfattn.__all__}
    wanted = {cls for cls in public if inspect.isclass(cls)}
    wanted = {cls for cls in wanted if issubclass(cls, tfattn.Normalizer)}
    rows = [row.make() for row in ALL if row.cls is tfattn.MultiHeadAttention]
    assert {type(layer.normalizer) for layer in rows} >= wanted - {tfattn.Normalizer}
    assert len(wanted) > 1


def test_row_names_are_unique():
    names = [row.name for row in ALL]
    assert len(set(names)) == len(names)


def test_rows_that_trace_both_paths_are_in_the_table():
    assert {row.name for row in SAVED} >= BOTH
