"""What holds for each demo, read from its text or from its help."""

import ast
import sys

import pytest

from tests.demos.running import DEMOS, run

WITH_TENSORFLOW = ("hard_attention", "kernel_regression", "residuals_and_norms")
NAMES = sorted(path.stem for path in DEMOS.iterdir() if path.suffix == ".py")


def test_every_file_is_a_demo_of_its_own():
    assert NAMES == [
        "attention_cues",
        "bahdanau_translation",
        "batched_matmul",
        "convolution_recurrence_attention",
        "hard_attention",
        "kernel_regression",
        "kernel_regression_tool",
        "masked_attention",
        "multi_head",
        "positions",
        "residuals_and_norms",
        "scoring_functions",
        "self_attention_by_hand",
        "transformer_translation",
    ]
    for name in NAMES:
        tree = ast.parse((DEMOS / f"{name}.py").read_text(encoding="utf-8"))
        imported = {
            name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [node.module]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
        }
        assert imported <= sys.stdlib_module_names | {
            "keras",
            "matplotlib",
            "numpy",
            "sklearn",
            "tensorflow",
            "tfattn",
        }


@pytest.mark.parametrize(
    "name",
    [
        "attention_cues",
        "bahdanau_translation",
        "batched_matmul",
        "kernel_regression",
        "scoring_functions",
        "transformer_translation",
    ],
)
def test_a_lesson_is_read_from_top_to_bottom(name):
    tree = ast.parse((DEMOS / f"{name}.py").read_text(encoding="utf-8"))
    defined = (ast.FunctionDef, ast.ClassDef, ast.If, ast.While, ast.Try)
    assert not [node for node in ast.walk(tree) if isinstance(node, defined)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.tensorflow] * (name in WITH_TENSORFLOW))
        for name in NAMES
    ],
)
def test_help_names_the_options(name, tmp_path, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(
        "argparse.ArgumentParser._print_message", lambda _, text, *__: shown.append(text)
    )
    with pytest.raises(SystemExit) as end:
        run(name, "--help", folder=tmp_path)
    assert end.value.code == 0
    assert "--seed" in shown[0] and "--out DIR" in shown[0]
    assert list(tmp_path.iterdir()) == []
