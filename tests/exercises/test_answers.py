"""Every exercise accepts a right answer, and tells each of the wrong ones that people give."""

import ast
import inspect
import re
import sys

import keras
import numpy as np
import pytest

import exercises
from exercises import layer_checking
from exercises.checking import fault
from exercises.exercise import LANGUAGES, LayerExercise
from tests.exercises.answers import ANSWERS
from tests.test_docs import ORDER, ROOT

ALL = exercises.names()
NAMES = [name for name in ALL if not isinstance(exercises.get(name), LayerExercise)]
WRONG = [
    (name, wrong) for name, answers in ANSWERS.items() for wrong in answers if wrong != "right"
]
SEEDS = range(3)


def said(name, function, language="en", seed=0):
    return fault(exercises.get(name), function, language, seed)


def test_every_exercise_has_a_right_answer_and_at_least_three_wrong_ones():
    assert list(ANSWERS) == NAMES
    assert all(len(answers) >= 4 and "right" in answers for answers in ANSWERS.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_right_answer_passes_on_all_inputs(name):
    for function in (ANSWERS[name]["right"], exercises.get(name).oracle):
        assert [said(name, function, seed=seed) for seed in SEEDS] == [None] * len(SEEDS)


@pytest.mark.parametrize("name, wrong", WRONG)
def test_a_wrong_answer_fails_on_any_inputs_and_is_told_what_differs(name, wrong):
    for seed, language in zip(SEEDS, ("en", "zh", "en"), strict=True):
        sentence = said(name, ANSWERS[name][wrong], language, seed)
        assert sentence and sentence.startswith(name)
        assert "\n" not in sentence and len(sentence) < 500


@pytest.mark.parametrize("name", NAMES)
def test_constants_fail_whatever_they_are(name):
    exercise = exercises.get(name)
    for inputs in exercise.cases(3):
        constant = exercise.oracle(*inputs)
        sentence = said(name, lambda *_, constant=constant: constant)
        assert "returns equal results where the answers differ" in sentence
    wanted = exercise.oracle(*exercise.cases(0)[0])
    zeros = tuple(0 * x for x in wanted) if isinstance(wanted, tuple) else np.multiply(wanted, 0)
    assert said(name, lambda *_: zeros)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_fresh_small_and_not_all_of_one_shape(name):
    exercise = exercises.get(name)
    cases, others = exercise.cases(0), exercise.cases(1)
    assert len(cases) == len(others) >= 3
    assert not all(
        np.array_equal(x, y)
        for case, other in zip(cases, others, strict=True)
        for x, y in zip(case, other, strict=True)
    )
    assert all(np.size(x) <= 500 for case in cases for x in case)
    described = {str([getattr(x, "shape", x) for x in case]) for case in cases}
    assert len(described) > 1


@pytest.mark.parametrize("name", ALL)
def test_texts_are_in_both_languages_and_the_stub_is_a_function_to_fill_in(name):
    exercise = exercises.get(name)
    assert exercise.tutorial in ORDER or (ROOT / "docs" / f"{exercise.tutorial}.md").is_file()
    assert len(exercise.hints()) >= 2
    english, chinese = (
        [exercise.title(language), exercise.statement(language), *exercise.hints(language)]
        for language in LANGUAGES
    )
    assert len(english) == len(chinese)
    for en, zh in zip(english, chinese, strict=True):
        assert re.search("[\u4e00-\u9fff]", zh) or zh.isascii()
        assert not re.search("[\u4e00-\u9fff，。]", en)
    for language in LANGUAGES:
        stub = exercise.stub(language)
        assert max(map(len, stub.splitlines())) <= 100
        space = {}
        exec(stub, space)
        answer = space[name]
        if isinstance(exercise, LayerExercise):
            call = [argument for argument in _arguments(answer.call) if argument != "training"]
            assert call == ["self", *exercise.arguments]
            assert _arguments(answer.__init__) == ["self", *exercise.cases(0)[0][0], "kwargs"]
            sentence = layer_checking.fault(exercise, answer, language)
        else:
            assert _arguments(answer) == exercise.arguments
            sentence = said(name, answer, language)
        assert "NotImplementedError" in sentence


def _arguments(function):
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("page, language", [("exercises.md", "en"), ("zh/exercises.md", "zh")])
def test_the_page_lists_every_exercise_with_its_title_and_tutorial(page, language):
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    rows = [row for row in rows if "`" in row[-2]]
    wanted = [exercises.get(name) for name in ALL]
    assert [row[-2:] for row in rows] == [[f"`{e.name}`", e.title(language)] for e in wanted]
    tutorial = ""
    for row, exercise in zip(rows, wanted, strict=True):
        tutorial = row[0] if len(row) == 3 else tutorial
        assert f"{exercise.tutorial}" in tutorial


@pytest.mark.parametrize("page", ["exercises.md", "zh/exercises.md"])
def test_the_page_shows_what_its_checks_print(page, capsys):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```\n\n((?: {4}[^\n]*\n)*)", text, re.M | re.S)
    assert sum(shown != "" for _, shown in blocks) == 3
    space = {}
    for code, shown in blocks:
        exec(code, space)
        printed = capsys.readouterr().out
        assert not shown or "".join(shown.split()) == "".join(printed.split())


def test_exercises_import_keras_and_the_package_only_to_check_a_layer():
    for path in (ROOT / "exercises").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        roots = {
            name.split(".")[0]
            for node in tree.body
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert roots <= {"numpy", "exercises", *sys.stdlib_module_names}, path


# What an answer returns.


def test_the_first_difference_is_named_by_index_and_both_numbers():
    def causal_mask(num_queries, num_keys):
        return np.tri(num_queries, num_keys, dtype=bool)

    assert said("causal_mask", causal_mask) == (
        "causal_mask is not right yet: with num_queries=3, num_keys=5, at index (0, 1), expected "
        "True, got False. The inputs: exercises.get('causal_mask').cases(0)[1]"
    )
    assert exercises.get("causal_mask").cases(0)[1] == (3, 5)
    assert said("causal_mask", causal_mask, "zh") == (
        "causal_mask 还不正确：输入为 num_queries=3, num_keys=5 时，下标 (0, 1) 处应为 True，"
        "得到 False。这组输入：exercises.get('causal_mask').cases(0)[1]"
    )


@pytest.mark.parametrize(
    "name, wrong, what",
    [
        ("split_heads", "tokens before heads", "expected shape (2, 2, 3, 5), got (2, 3, 2, 5)"),
        ("causal_mask", "numbers", "expected dtype boolean, got float64"),
        ("masked_softmax", "NaN where the length is 0", "expected 0, got nan"),
        ("self_attention", "one result", "expected 2 results, got 1"),
        ("self_attention", "softmax over queries", "result 1 of 2: at index (0, 0), expected"),
        ("masked_softmax", "changes the scores", "it changes its argument `scores` in place"),
        ("layers_to_connect", "floor", "with length=10, kernel_size=3, expected 5, got 4"),
        (
            "additive_scores",
            "tokens paired, not all pairs",
            "raises ValueError: operands could not",
        ),
        ("layers_to_connect", "a float", "expected dtype integer, got float64"),
    ],
)
def test_a_difference_is_told_by_its_kind(name, wrong, what):
    assert what in said(name, ANSWERS[name][wrong])


@pytest.mark.parametrize(
    "result, what",
    [
        (None, "it returns None: is there a `return`?"),
        ("abc", "got str, which is no array"),
        ([[1.0], [2.0, 3.0]], "got list, which is no array"),
        (np.zeros((2, 3, 5), complex), "got complex128"),
    ],
)
def test_what_is_no_array_of_numbers_is_named(result, what):
    given = [result]  # of the first case alone, so that it is no constant

    def weighted_sums(weights, values):
        return given[0] if weights.shape == (2, 3, 5) and values.shape == (2, 5, 4) else weights

    if isinstance(result, np.ndarray):
        given[0] = np.zeros((2, 3, 4), complex)
    assert what in said("weighted_sums", weighted_sums)


def test_an_error_is_named_with_its_line_in_the_answer():
    def merge_heads(x):
        return x.transpose(0, 1)

    line = merge_heads.__code__.co_firstlineno + 1
    assert f"line {line} raises ValueError: axes don't match array" in said(
        "merge_heads", merge_heads
    )
    assert f"第 {line} 行引发了 ValueError" in said("merge_heads", merge_heads, "zh")

    def fails(x):
        raise NotImplementedError("heads")

    assert "raises NotImplementedError: heads" in said("merge_heads", fails)
    assert "raises SystemExit: 0" in said("merge_heads", lambda x: sys.exit(0))


def test_tensors_of_the_backend_and_lists_are_taken():
    def weighted_sums(weights, values):
        return keras.ops.matmul(weights, values)

    def hard_attention(scores, values):
        return [list(values[row.argmax()]) for row in scores]

    assert said("weighted_sums", weighted_sums) is None
    assert said("hard_attention", hard_attention) is None

    def half(weights, values):
        return keras.ops.cast(keras.ops.matmul(weights, values), "bfloat16")

    assert "expected" in said("weighted_sums", half)  # of less than four digits


# What users call.


def test_check_prints_one_sentence_and_says_whether_the_answer_is_right(capsys):
    assert exercises.check("masked_softmax", ANSWERS["masked_softmax"]["right"])
    assert capsys.readouterr().out == "masked_softmax is right, on 6 random inputs.\n"
    assert exercises.check("masked_softmax", ANSWERS["masked_softmax"]["right"], language="zh")
    assert capsys.readouterr().out == "masked_softmax 正确：6 组随机输入都通过。\n"
    assert not exercises.check("causal_mask", lambda t, s: np.tri(t, s) > 0)
    assert capsys.readouterr().out.count("\n") == 1


def test_the_seed_is_another_each_time_and_can_be_given(capsys):
    for seed in (None, None, 7, 7):
        exercises.check("hard_attention", lambda s, v: s @ v, seed=seed)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] != lines[1] and lines[2] == lines[3]
    assert lines[2].endswith("exercises.get('hard_attention').cases(7)[0]")


@pytest.mark.parametrize(
    "arguments, options, error",
    [
        (
            ("masked_sofmax", len),
            {},
            "such as 'masked_softmax', see names() or run python -m exercises. Received",
        ),
        (
            (3, len),
            {},
            "name an exercise, see names() or run python -m exercises. Received: name=3",
        ),
        (
            ("causal_mask", 3),
            {},
            "exercises.check: `function` must be callable. Received: function=3",
        ),
        (("causal_mask", len), {"language": "fr"}, "exercises.check: `language` must be one of "),
        (("causal_mask", len), {"seed": -1}, "expected non-negative integer"),
    ],
)
def test_invalid_arguments_are_refused(arguments, options, error):
    with pytest.raises(ValueError, match=re.escape(error)):
        exercises.check(*arguments, **options)
