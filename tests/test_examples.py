"""Trained models in files of the package."""

import configparser
import fnmatch
import pathlib

import numpy as np
import pytest

import tfattn
from tests.helpers.searches import eagerly

PACKAGE = pathlib.Path(tfattn.__file__).parent
# Not in the sentences that the models have learned from.
HELD_OUT = tfattn.data.split_pairs(tfattn.data.toy_translation(8_000))[1][:200]


@pytest.mark.slow
@eagerly()
def test_load_example_translates_sentences_that_it_has_not_learned_from():
    model, *words = tfattn.load_example("grammar")
    sources, references = zip(*HELD_OUT, strict=True)
    found = tfattn.translate(model, sources, *words)
    right = [ours == theirs for ours, theirs in zip(found, references, strict=True)]
    assert np.mean(right) >= 0.97


def test_load_example_refuses_an_unknown_name():
    said = r"load_example: `name` must be one of \['grammar'\]. Received: "
    with pytest.raises(ValueError, match=said + "name='gramar'$"):
        tfattn.load_example("gramar")


def test_package_data_names_each_file_and_the_example_is_small():
    setup = configparser.ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg")
    data = setup["options.package_data"]
    found = [path for path in PACKAGE.rglob("*.*") if path.suffix not in (".py", ".pyc")]
    for path in found:
        package = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
        patterns = data.get(package, "").split(", ")
        assert any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns), path
    sizes = [path.stat().st_size for path in found if path.parent.name == "examples"]
    assert len(sizes) == 3 and sum(sizes) < 3e6
