"""Every public layer has a row in the table."""

import inspect

import pytest

import tfattn
from tests.conformance.paths import BOTH
from tests.conformance.table import INSIDE, OF_A_KIND, ROWS, SAVED, public_layers

CLASSES = {row.cls for row in ROWS}


@pytest.mark.parametrize("cls", public_layers(), ids=lambda cls: cls.__name__)
def test_table_has_a_row_for_every_public_layer_and_model(cls):
    assert cls in CLASSES, f"add a row for {cls.__name__} to tests/conformance/table.py"


@pytest.mark.parametrize(
    "argument, base", [("positions", tfattn.HeadPositions), ("normalizer", tfattn.Normalizer)]
)
def test_table_has_a_row_for_every_public_part_of_heads(argument, base):
    public = {getattr(tfattn, name) for name in tfattn.__all__}
    wanted = {cls for cls in public if inspect.isclass(cls) and issubclass(cls, base)}
    rows = [row.make() for row in ROWS if row.cls is tfattn.MultiHeadAttention]
    lacking = wanted - {base} - {type(getattr(layer, argument)) for layer in rows}
    names = ", ".join(sorted(cls.__name__ for cls in lacking))
    assert not lacking, f"table.py: add a row of MultiHeadAttention with {argument}={names}"
    assert len(wanted) > 1


def test_table_rows_have_unique_names_that_other_files_know():
    names = [row.name for row in SAVED]
    assert len(set(names)) == len(names)
    assert set(names) >= BOTH | OF_A_KIND | INSIDE
