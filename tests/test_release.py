"""What a release is made of: the long description, the citation, an install by one line."""

import ast
import configparser
import importlib.util
import re
from pathlib import Path

import pytest

import tfattn

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def long_description():
    pytest.importorskip("setuptools")
    spec = importlib.util.spec_from_file_location("setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.long_description


def test_without_an_address_the_long_description_has_no_link_and_no_picture(long_description):
    text = long_description(README, "", "1.2.3")
    assert re.findall(r"\]\(", text) == [] and "![" not in text
    assert "Which layer to choose" in text
    text = long_description("See [a](docs/a.md):\n\n![Two\nlines](b.png)\n\nEnd.", "", "1.2.3")
    assert text == "See a.\n\nEnd."


def test_with_an_address_its_links_lead_to_the_files_of_the_version(long_description):
    url = "https://x.y/z"
    text = long_description("[a](docs/a.md#b) ![c](d.svg) [e](https://f.g)", url, "1.2.3")
    links = "[a](https://x.y/z/blob/v1.2.3/docs/a.md#b) ![c](https://x.y/z/raw/v1.2.3/d.svg)"
    assert text == f"{links} [e](https://f.g)"
    targets = re.findall(r"\]\(([^)]*)\)", long_description(README, url, "1.2.3"))
    assert len(targets) > 20 and all(target.startswith("https://") for target in targets)


def test_the_citation_is_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)", citation, re.MULTILINE)[1] == tfattn.__version__


def _settings():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def _names(requirements):
    return {re.match(r"[\w-]+", line)[0] for line in requirements.split()}


def test_the_line_that_installs_without_tensorflow_names_all_other_requirements():
    wanted = _names(_settings()["options"]["install_requires"]) - {"tensorflow"}
    page = (ROOT / "docs" / "coming-from-keras.md").read_text(encoding="utf-8")
    line = r"^pip install --upgrade (.*) && pip install --no-deps \.$"
    lines = re.findall(line, page, re.MULTILINE)
    assert [set(line.split()) for line in lines] == [{*wanted, "jax"}, {*wanted, "torch"}]


def test_an_extra_that_is_asked_for_installs_what_is_missing():
    extras = _settings()["options.extras_require"]
    distributions = {"sklearn": "scikit-learn", "keras_hub": "keras-hub"}
    asked = set()
    for path in Path(tfattn.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "_optional.find":
                asked.add(tuple(ast.literal_eval(argument) for argument in node.args[:2]))
    assert len(asked) > 10
    for module, extra in asked:
        package = module.partition(".")[0]
        requirements = extras[extra].replace("tfattn[text]", extras["text"])
        assert distributions.get(package, package) in _names(requirements), (module, extra)
