"""What a release is made of: version, citation, changelog, long description, what installs it."""

import ast
import configparser
import importlib.util
import re
from pathlib import Path

import pytest

import tfattn

ROOT = Path(__file__).resolve().parents[1]


def _read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def test_version_is_that_of_the_citation_and_changelog_sections_have_dates():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", tfattn.__version__)
    version = re.search(r"^version: (.*)", _read("CITATION.cff"), re.MULTILINE)[1]
    assert version == tfattn.__version__
    first, *releases = re.findall(r"^## (.*)", _read("CHANGELOG.md"), re.MULTILINE)
    assert first == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", each) for each in releases)


@pytest.mark.slow
def test_long_description_has_links_only_to_an_address():
    pytest.importorskip("setuptools")
    spec = importlib.util.spec_from_file_location("setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    readme, of, url = _read("README.md"), module.long_description, "https://x.y/z"
    text = of(readme, "", "1.2.3")
    assert "](" not in text and "![" not in text and "Which layer to choose" in text
    text = of("See [a](docs/a.md):\n\n![Two\nlines](b.png)\n\nEnd.", "", "1.2.3")
    assert text == "See a.\n\nEnd."
    text = of("[a](docs/a.md#b) ![c](d.svg) [e](https://f.g)", url, "1.2.3")
    links = "[a](https://x.y/z/blob/v1.2.3/docs/a.md#b) ![c](https://x.y/z/raw/v1.2.3/d.svg)"
    assert text == f"{links} [e](https://f.g)"
    targets = re.findall(r"\]\(([^)]*)\)", of(readme, url, "1.2.3"))
    assert len(targets) > 20 and all(target.startswith("https://") for target in targets)


def _requirements(section, key):
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config[section][key].replace("tfattn[text]", config["options.extras_require"]["text"])
    return {re.match(r"[\w-]+", line)[0] for line in lines.split()}


def test_line_that_installs_without_tensorflow_names_all_other_requirements():
    wanted = _requirements("options", "install_requires") - {"tensorflow"}
    line = r"^pip install --upgrade (.*) && pip install --no-deps \.$"
    lines = re.findall(line, _read("docs/coming-from-keras.md"), re.MULTILINE)
    assert [set(line.split()) for line in lines] == [{*wanted, "jax"}, {*wanted, "torch"}]


@pytest.mark.slow
def test_extra_that_is_asked_for_installs_what_is_missing():
    distributions = {"sklearn": "scikit-learn"}
    asked = set()
    for path in Path(tfattn.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "_optional.find":
                asked.add(tuple(ast.literal_eval(argument) for argument in node.args[:2]))
    assert len(asked) > 10
    for module, extra in asked:
        package = module.partition(".")[0]
        installed = _requirements("options.extras_require", extra)
        assert distributions.get(package, package) in installed, (module, extra)
