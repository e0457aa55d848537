"""`python -m exercises`: list, open, hint and check."""

import re

import pytest

from exercises import names
from exercises.__main__ import main

RIGHT = """
import numpy as np

def causal_mask(num_queries, num_keys):
    return np.tri(num_queries, num_keys, num_keys - num_queries, dtype=bool)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments):
    """(exit status, standard output, standard error)."""
    status = main(arguments)
    return status, *capsys.readouterr()


def test_without_a_command_it_lists_all_exercises_by_tutorial(capsys):
    status, text, _ = run(capsys)
    lines = text.splitlines()
    assert status == 0 and lines[:2] == [
        "attention_cues",
        "  attention_pooling       Attention pooling",
    ]
    assert [line.split()[0] for line in lines if line.startswith("  ")] == names()
    assert run(capsys, "list")[1] == text
    for arguments in (("--language", "zh"), ("list", "--language", "zh")):
        assert "  masked_softmax          掩蔽 softmax\n" in run(capsys, *arguments)[1]


def test_open_writes_a_file_once_and_check_reads_it(capsys, folder):
    assert run(capsys, "open", "causal_mask") == (0, "causal_mask.py\n", "")
    file = folder / "causal_mask.py"
    assert "python -m exercises check causal_mask.py\n" in file.read_text(encoding="utf-8")
    status, said, _ = run(capsys, "check", "causal_mask")
    assert status == 1 and "its body is still to be written" in said
    file.write_text(RIGHT, encoding="utf-8")
    for target in ("causal_mask", "causal_mask.py", str(file)):
        right = "causal_mask is right, on 5 random inputs.\n"
        assert run(capsys, "check", target) == (0, right, "")
    said = "error: causal_mask.py exists already and was left as it is\n"
    assert run(capsys, "open", "causal_mask") == (1, "", said)
    assert file.read_text(encoding="utf-8") == RIGHT


def test_the_file_and_the_sentences_are_in_chinese_where_asked(capsys, folder):
    assert run(capsys, "open", "split_heads", "--language", "zh")[0] == 0
    assert "拆成多个头" in (folder / "split_heads.py").read_text(encoding="utf-8")
    assert "函数体还没有写" in run(capsys, "check", "split_heads", "--language", "zh")[1]
    assert (
        "reshape 不改变"
        in run(capsys, "hint", "split_heads", "--number", "2", "--language", "zh")[1]
    )


def test_hints_come_one_after_the_other(capsys):
    first, both, more = (
        run(capsys, "hint", "causal_mask", *number)[1]
        for number in ((), ("--number", "2"), ("--number", "9"))
    )
    assert first.startswith("1/2  At which position") and first.count("\n") == 1
    assert both.startswith(first) and both.count("\n") == 2 and more == both


def test_a_file_with_several_answers_is_checked_whole(capsys, folder):
    wrong = "def merge_heads(x):\n    return x\n"
    (folder / "mine.py").write_text(RIGHT + wrong, encoding="utf-8")
    status, said, _ = run(capsys, "check", "mine.py")
    assert status == 1 and "causal_mask is right" in said and "merge_heads is not right" in said


@pytest.mark.parametrize(
    "arguments, text, error",
    [
        (("check", "causal_mask"), "", "causal_mask.py does not exist; `open causal_mask` writes"),
        (
            ("check", "mine.py"),
            "x = 3",
            "mine.py defines no function or class with the name of an exercise",
        ),
        (("check", "AddNorm"), RIGHT, "AddNorm.py defines no class `AddNorm`"),
        (
            ("check", "mine.py"),
            "x = 3\ny = (",
            "mine.py, line 2: SyntaxError: '(' was never closed",
        ),
        (("check", "mine.py"), "\n\nx = 1 / 0", "mine.py, line 3: ZeroDivisionError: division by"),
        (
            ("check", "mine.py"),
            "import json\njson.loads(3)",
            "mine.py, line 2: TypeError: the JSON",
        ),
        (("check", "mine.py"), RIGHT + "exit()", "mine.py, line 6: SystemExit"),
        (("check", "split_heads"), RIGHT, "split_heads.py defines no function `split_heads`"),
        (("check", "split_heads.py"), RIGHT, "split_heads.py defines no function `split_heads`"),
    ],
)
def test_errors_are_one_sentence_and_status_1(arguments, text, error, capsys, folder):
    if text:
        file = folder / f"{arguments[1].removesuffix('.py')}.py"
        file.write_text(text, encoding="utf-8")
    status, out, said = run(capsys, *arguments)
    assert (status, out) == (1, "")
    assert said.startswith("error: ") and error in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", ["open causal_masks", "hint causal_masks", "check causal_masks", "check x/nil.py"]
)
def test_unknown_exercise_is_refused_with_names_and_status_2(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments.split())
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search("no exercise is called '(causal_masks|nil)', but attention_pooling, ", last)


def test_an_unknown_language_is_refused_by_the_parser(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["list", "--language", "fr"])
    assert "invalid choice: 'fr'" in capsys.readouterr().err
