"""What holds for each demo, read from its text or from its help. `expected.py` has what each finds,
where its page is built.
"""

import ast
import pathlib
import runpy
import sys

import pytest

from tests.demos import expected
from tests.helpers.tensors import BACKEND

DEMOS = pathlib.Path(__file__).parents[2] / "demos"
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DEMOS.glob("*.py"))}
NAMES = [
    name
    for name, source in SOURCES.items()
    if BACKEND == "tensorflow" or "import tensorflow" not in source
]
# Each is read from top to bottom.
LESSONS = (
    "attention_cues",
    "bahdanau_translation",
    "batched_matmul",
    "kernel_regression",
    "scoring_functions",
    "transformer_translation",
)
PACKAGES = {"keras", "matplotlib", "numpy", "sklearn", "tensorflow", "tfattn"}


def run(name, *arguments):
    """A demo's variables at its end, run as a script in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        return runpy.run_path(str(DEMOS / f"{name}.py"), run_name="__main__")


def test_every_file_is_a_demo_of_its_own_that_ends_with_its_result():
    assert set(SOURCES) == set(expected.FACTS)
    for name, source in SOURCES.items():
        imported = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
        assert imported <= sys.stdlib_module_names | PACKAGES, name
        end = source.removesuffix("\nviewer\n").removesuffix("# sphinx_gallery_end_ignore\n")
        assert end.rstrip().endswith('\nprint("result:", json.dumps(result))'), name


def test_a_lesson_is_read_from_top_to_bottom():
    defined = (ast.FunctionDef, ast.ClassDef, ast.If, ast.While, ast.Try)
    for name in LESSONS:
        nodes = ast.walk(ast.parse(SOURCES[name]))
        assert not [node for node in nodes if isinstance(node, defined)], name


@pytest.mark.slow
def test_help_names_the_options_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        shown = []
        monkeypatch.setattr(
            "argparse.ArgumentParser._print_message", lambda _, text, *__, to=shown: to.append(text)
        )
        with pytest.raises(SystemExit, match="^0$"):
            run(name, "--help")
        assert "--seed" in shown[0] and "--out DIR" in shown[0], name
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_demo_finds_what_it_is_to_find_and_one_that_translates_from_another_seed(name, tmp_path):
    """On each backend; from the first seed on TensorFlow, where its page is built."""
    seed = int("translation" in name)
    variables = run(name, "--seed", seed, "--out", tmp_path / "new")
    expected.check(name, variables, tmp_path / "new")
