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
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DEMOS.glob("[!_]*.py"))}
NAMES = [
    name
    for name, source in SOURCES.items()
    if BACKEND == "tensorflow" or "import tensorflow" not in source
]
# Each is read from top to bottom. They may write layers, whose methods may branch.
LESSONS = (
    *("attention_cues", "bahdanau_translation", "batched_matmul", "kernel_regression"),
    *("scoring_functions", "transformer_translation"),
)
PACKAGES = {"_figures", "keras", "matplotlib", "numpy", "sklearn", "tensorflow", "tfattn"}


def run(name, *arguments):
    """A demo's variables at its end, run as a script in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DEMOS))  # as Python does for a script
        patch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        return runpy.run_path(str(DEMOS / f"{name}.py"), run_name="__main__")


@pytest.mark.slow
def test_demo_stands_alone_and_ends_with_its_result():
    defined = (ast.FunctionDef, ast.If, ast.While, ast.Try)
    assert set(SOURCES) == set(expected.FACTS)
    for name, source in SOURCES.items():
        imported, tree = set(), ast.parse(source)
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        of_classes = {part for node in classes for part in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            if name in LESSONS and node not in of_classes:
                assert not isinstance(node, defined), name
        assert imported <= sys.stdlib_module_names | PACKAGES, name
        end = source.removesuffix("\nviewer\n").removesuffix("# sphinx_gallery_end_ignore\n")
        assert end.rstrip().endswith('\nprint("result:", json.dumps(result))'), name


@pytest.mark.slow
def test_demo_help_names_the_options_and_writes_nothing(tmp_path, monkeypatch):
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


# On TensorFlow they run from the first seed where their pages are built.
ANEW = [name for name in NAMES if "translation" in name or BACKEND != "tensorflow"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ANEW)
def test_demo_from_another_seed_or_on_another_backend_finds_what_it_is_to_find(name, tmp_path):
    seed = int("translation" in name)
    variables = run(name, "--seed", seed, "--out", tmp_path / "new")
    expected.check(name, variables, tmp_path / "new")
