"""Fixture: the graphs of each row have the paths chosen in `paths`."""

import pytest

from tests.conformance.paths import paths_of


@pytest.fixture(autouse=True)
def _paths_of_the_row(request):
    row = getattr(request.node, "callspec", None) and request.node.callspec.params.get("row")
    if row is None:
        yield
        return
    with paths_of(row):
        yield
