"""Every exercise on layers accepts right answers in several ways, and tells wrong ones apart."""

import re

import keras
import pytest

import exercises
from exercises.exercise import LANGUAGES, LayerExercise
from exercises.layer_checking import fault, first_fault
from exercises.messages import MESSAGES
from tests.exercises import layer_answers
from tests.exercises.layer_answers import CHANGES, OF_PARTS, OTHERS, changed, registered

NAMES = [name for name in exercises.names() if isinstance(exercises.get(name), LayerExercise)]
FAULTS = [(name, what, change[0]) for name in NAMES for what, change in CHANGES[name].items()]
FAULTS += [("EncoderBlock", what, key) for what, key in OF_PARTS.items()]
# The first way, other classes, and the first one in other words.
WAYS = [(name, way) for name in NAMES for way in (getattr(layer_answers, name), *OTHERS[name])]
WAYS += [(name, what) for name, what, key in FAULTS if key == "right"]
FAULTS = [(name, what, key) for name, what, key in FAULTS if key != "right"]


def test_every_exercise_has_two_other_ways_and_at_least_ten_faults_told_apart():
    assert list(CHANGES) == NAMES and len(NAMES) == 8
    for name in NAMES:
        assert sum(other == name for other, _ in WAYS) == 3, name
        assert len({key for other, _, key in FAULTS if other == name}) >= 10, name


def is_slow(name, way):
    """Whether a case is of a block, or another way than the first."""
    return name.endswith("Block") or way in [*OTHERS[name], "in other words"]


def marked(cases):
    """The cases, the slow ones marked."""
    marks = {True: pytest.mark.slow, False: ()}
    return [pytest.param(*case, marks=marks[is_slow(*case[:2])]) for case in cases]


@pytest.mark.parametrize("name, way", marked(WAYS))
def test_right_layer_is_accepted(name, way):
    answer = changed(name, way) if isinstance(way, str) else registered(way)
    assert fault(exercises.get(name), answer, "en", seed=1) is None


@pytest.mark.parametrize("name, what, key", marked(FAULTS))
def test_wrong_layer_is_refused_for_what_is_wrong(name, what, key):
    _, difference = first_fault(exercises.get(name), changed(name, what), seed=0)
    assert difference is not None and difference.key == key


def test_every_message_on_layers_is_that_of_a_wrong_answer_and_has_its_facts_in_both_languages():
    keys = list(MESSAGES)
    of_layers = set(keys[keys.index("no_layer") :]) - {"no_layer"}
    assert of_layers <= {key for _, _, key in FAULTS}
    for english, chinese in MESSAGES.values():
        assert sorted(re.findall(r"{\w+}", english)) == sorted(re.findall(r"{\w+}", chinese))


def test_fault_is_a_sentence_in_both_languages_with_the_inputs_by_shape(capsys):
    answer = changed("DotProductAttention", "a mask after the softmax")
    sentences = [
        fault(exercises.get("DotProductAttention"), answer, language, 3) for language in LANGUAGES
    ]
    case = "dropout=0.0, query (2, 5, 4), value (2, 7, 4), key (2, 7, 4), key_mask (2, 7)"
    call = "exercises.get('DotProductAttention').cases(3)[1]"
    assert sentences == [
        f"DotProductAttention is not right yet: with {case}, the mask is applied after the "
        "softmax, so that the weights no longer sum to 1; hide the scores before it. "
        f"The inputs: {call}",
        f"DotProductAttention 还不正确：输入为 {case} 时，掩码用在了 softmax 之后，"
        f"权重之和不再是 1；应在 softmax 之前遮住评分。这组输入：{call}",
    ]
    assert not exercises.check("AddNorm", keras.layers.add)
    assert "it is no subclass of `keras.layers.Layer`" in capsys.readouterr().out
    assert exercises.check(
        "PositionalEncoding", registered(layer_answers.PositionalEncoding), language="zh"
    )
    assert "tfattn.SinusoidalPositionalEncoding 一致" in capsys.readouterr().out
