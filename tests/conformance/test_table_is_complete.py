"""A public layer that nobody added to the table fails here."""

import pytest

from tests.conformance.table import ALL, public_layers


@pytest.mark.parametrize("cls", public_layers(), ids=lambda cls: cls.__name__)
def test_every_public_layer_and_model_has_a_row(cls):
    assert cls in {row.cls for row in ALL}, (
        f"add a row for {cls.__name__} to tests/conformance/table.py"
    )


def test_row_names_are_unique():
    names = [row.name for row in ALL]
    assert len(set(names)) == len(names)
