"""A demo that is run once for all tests of its file."""

import pytest

from tests.demos.running import result, run


@pytest.fixture(scope="module")
def story(request, tmp_path_factory):
    """(the numbers of the last line, the demo's variables, the folder of the figures).

    The file `test_NAME.py` is about the demo NAME. The folder is one of the caller's choice, or the
    demo's own where the file says `OPTIONS = []`.
    """
    name = request.path.stem.removeprefix("test_")
    options = getattr(request.module, "OPTIONS", ["--out", "new/figures"])
    folder = tmp_path_factory.mktemp(name)
    output, variables = run(name, *options, folder=folder)
    figures = folder / "new" / "figures" if options else folder / "out" / name
    return result(output), variables, figures
