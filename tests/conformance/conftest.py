"""Each row's graphs hold the paths that `paths` names."""

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
