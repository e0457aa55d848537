"""`translate`: order, batches, invalid input, and no further traces or memory in a second pass."""

import gc
import pathlib
import re

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.searches import (
    ENGLISH,
    GERMAN,
    SPECIAL,
    WordForWord,
    eagerly,
    recurrent,
    some_sentences,
    transformer,
    word_for_word,
)
from tests.helpers.tensors import BACKEND, CALLS_A_TRACE, needs_compiling
from tfattn import data, decoding, rules
from tfattn.decoding.translate import unknown_words

pytestmark = pytest.mark.usefixtures("dense_path")


def translate(sentences, model=None, **options):
    return decoding.translate(model or WordForWord(), sentences, ENGLISH, GERMAN, **options)


@eagerly()
def test_translate_n_best_has_scores_in_order():
    sentences = ["one", "", "one two"]
    search = decoding.BeamSearch(num_beams=3, length_penalty=0.0, num_results=2)
    arguments = Undecided(), sentences, ENGLISH, GERMAN
    one, empty, two = decoding.translate_n_best(*arguments, search, max_length=2)
    assert empty == [("", 0.0)] and one == two
    # Padding is never chosen; the other tokens, the end among them, are as likely as each other.
    scores = [score for _, score in one]
    np.testing.assert_allclose(scores, [-np.log(len(GERMAN)), -2 * np.log(len(GERMAN))], rtol=1e-5)
    assert one[0].text == ""
    assert decoding.translate(*arguments, search, max_length=2) == ["", "", ""]
    with pytest.raises(ValueError, match="translate_n_best: `search` must have beams, such as"):
        decoding.translate_n_best(*arguments, decoding.GreedySearch())


class Undecided:
    """All tokens are as likely as each other."""

    def encode(self, source, max_length):
        return {"source": ops.convert_to_tensor(source)}

    def step(self, tokens, position, state):
        return ops.zeros((ops.shape(tokens)[0], len(GERMAN))), state


@pytest.mark.slow
@eagerly()
def test_translate_draws_all_batches_from_one_seed():
    def drawn(seed):
        search = decoding.Sampling(seed=seed)
        options = {"model": Undecided(), "batch_size": 32, "max_length": 7}
        return translate(["one"] * 64, search=search, **options)

    found = drawn(1)
    assert found[:32] != found[32:]
    assert drawn(1) == found != drawn(2)
    assert drawn(keras.random.SeedGenerator(1)) == found
    with pytest.raises(ValueError, match="^Sampling: `seed` must be an integer of at least 0"):
        drawn(-1)


@eagerly()
def test_translate_of_an_empty_line_is_empty_without_the_model():
    model = WordForWord()
    assert translate(["", "  \t", ""], model) == ["", "", ""] and translate([], model) == []
    assert model.shapes == []
    assert translate((s for s in ("", "two", " ")), model) == ["", "zwei", ""]
    assert model.shapes == [(1, 8, 24)]
    with pytest.warns(UserWarning, match="lacks words"):  # which are translated like any word
        unknown = translate(["one 猫 \x00 <eos> two", "🙂"])
    assert unknown == ["eins <unk> <unk> <unk> zwei", "<unk>"]


@eagerly()
def test_unknown_words_are_named_once_with_their_sentences():
    model, words, beams = WordForWord(), (ENGLISH, GERMAN), decoding.BeamSearch(2)
    said = r"{}: `source_vocabulary` lacks words, which are read as unknown: {}\. A `SubwordVoc"
    found = r"'three,', 'Six' \(sentences\[1\]\); 'x' \(sentences\[3\]\)"
    lines = ["one", "three, one Six three,", "", "x"]
    for who, call in (
        ("translate", lambda: translate(lines)),
        ("translate_n_best", lambda: decoding.translate_n_best(model, lines, *words, beams)),
    ):
        with pytest.warns(UserWarning, match=f"^{said.format(who, found)}") as warned:
            call()
        assert len(warned) == 1 and warned[0].filename == __file__
    found = r"'x{37}\.\.\.' \(sentence\)"
    with pytest.warns(UserWarning, match=f"^{said.format('translate_stream', found)}") as warned:
        decoding.translate_stream(model, "one " + "x" * 50, *words)
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match=r"\(sentences\[9\]\); and words of 2 more\."):
        translate(["x"] * 12)


def test_unknown_words_are_those_of_the_vocabularys_own_tokenizer():
    characters = data.Vocabulary(["我", "猫"], tokenizer=data.Characters())
    parts = data.SubwordVocabulary.from_sentences(["ab b"], 20)
    for vocabulary, sentence, unknown in (
        (ENGLISH, "one two", []),
        (characters, "我 喜欢 猫", ["喜", "欢"]),
        (parts, "ab ☃b b ☃☃", ["☃b", "☃☃"]),
        (ENGLISH, "<unk> one six", ["six"]),
        (ENGLISH, "one <unk>", []),
        (data.Vocabulary(["Ann", "&apos;s"], data.Moses("en")), "Ann's hat", ["hat"]),
    ):
        ids = vocabulary.encode(sentence)
        assert unknown_words(vocabulary, sentence, ids) == unknown


class Ended(decoding.Search):
    """A search that writes nothing, and records the arguments of its calls."""

    def __init__(self):
        super().__init__()
        self.limits, self.ids = [], []

    def __call__(self, step, state, batch_size, max_length, **ids):
        self.limits.append(max_length), self.ids.append(ids)
        return np.full((batch_size, 1), ids["end_id"])


def test_translate_puts_a_much_longer_line_into_its_own_batch():
    model = WordForWord()
    translate(["one", "three " * 501, "two one"], model, batch_size=8, search=Ended())
    # 501 words and the end make 504; 1.5 times that and 8 make 764, and 768 of it.
    assert model.shapes == [(1, 504, 768), (2, 8, 24)]


def test_translate_has_full_batches_of_few_shapes():
    model = WordForWord()
    translate(some_sentences(1000, longest=40), model, batch_size=32, search=Ended())
    assert {rows for rows, *_ in model.shapes} <= {1, 2, 4, 8, 16, 32}
    assert {length % 8 for _, length, _ in model.shapes} == {0}
    assert sum(rows for rows, *_ in model.shapes) < 1.1 * 1000
    lengths = [length for _, length, _ in model.shapes]
    assert lengths == sorted(lengths, reverse=True) and len(set(model.shapes)) < 15


@eagerly()
def test_translate_with_max_length_uses_it():
    model = WordForWord()
    assert translate(["one two three", "four"], model, max_length=2) == ["eins zwei", "vier"]
    assert model.shapes == [(2, 8, 2)]


def test_translate_limits_a_sentence_by_its_length_and_the_model():
    search, model = Ended(), WordForWord()
    # 15, 9 and 8 tokens with the end: 16, 16 and 8 when padded
    sentences = ["one " * 14, "one " * 8, "one " * 7]
    translate(sentences, model, search=search, batch_size=4)
    assert search.limits[0].tolist() == [32, 32, 24, 24]  # the last of them fills the batch
    model.max_target_length = 27
    translate(sentences, model, search=search, batch_size=4)
    assert search.limits[1].tolist() == [27, 27, 24, 24]
    assert [length for *_, length in model.shapes] == [32, 27]


@pytest.mark.slow
def test_translate_with_learned_positions_refuses_longer_sentences():
    model = transformer(positions=tfattn.LearnedPositionalEncoding(13))
    assert model.max_source_length == model.max_target_length == 13
    # Twelve words and the end are as many as fit; a multiple of 8 would be too many.
    assert len(translate([" ".join(["one"] * 12), "four"], model)) == 2
    message = (
        "translate: `sentences[1]` must have at most 12 tokens, "
        "as far as the model's positions reach, not 13."
    )
    with pytest.raises(
        ValueError, match="^" + re.escape(message) + r" Received: sentences\[1\]='one one"
    ):
        translate(["six", " ".join(["one"] * 13)], model)
    with pytest.raises(ValueError, match="^TransformerDecoder: `max_length` must be at most 13"):
        model.encode(np.array([[4, 5]]), max_length=14)


def test_translate_uses_the_special_ids_of_the_target_vocabulary():
    class Other(data.Vocabulary):
        begin_id, end_id = 3, 2

    target = Other(GERMAN.words[SPECIAL:])
    search = Ended()
    assert decoding.translate(WordForWord(), ["one"], ENGLISH, target, search=search) == [""]
    assert search.ids == [{"begin_id": 3, "end_id": 2, "padding_id": 0}]


def test_translate_progress_bar_counts_the_sentences(capsys):
    translate(["one", "", "two three"] * 5, search=Ended(), progress=True, batch_size=4)
    assert "15/15" in capsys.readouterr().out
    translate(["one"], search=Ended())
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "make, search",
    [
        (recurrent, decoding.GreedySearch()),
        (transformer, decoding.BeamSearch(num_beams=3)),
    ],
    ids=["recurrent", "transformer"],
)
def test_translate_of_a_batch_padded_in_another_way_is_the_same(make, search):
    model, sentences = make(), some_sentences(16, longest=9, seed=3)
    # With a limit for each sentence that does not depend on the rest of its batch.
    together = translate(sentences, model, batch_size=16, search=search)
    assert len(set(together)) > 5
    # In a batch with longer sentences, which need more padding.
    longer = some_sentences(9, longest=13, seed=5)
    assert translate([*longer, *sentences], model, batch_size=16, search=search)[9:] == together
    assert translate(sentences[:5], model, batch_size=1, search=search) == together[:5]


@pytest.mark.slow
@eagerly()
def test_translate_takes_the_rows_of_rules_in_the_order_of_the_sentences():
    sentences = some_sentences(8, longest=6, seed=3)
    begun = [[6, 5] if row % 3 else [] for row in range(8)]
    search = decoding.BeamSearch(num_beams=2, rules=[rules.TargetPrefix(begun)])
    together = translate(sentences, search=search, batch_size=4, max_length=6)
    for row, sentence in enumerate(sentences):
        if not sentence:
            continue
        alone = search.of_sentences([row])
        assert translate([sentence], search=alone, max_length=6) == [together[row]]
        assert together[row].startswith(GERMAN.decode(begun[row]))
    assert len(set(together)) > 5


def every_rule(count):
    """One rule of each kind, with rows for `count` sentences."""
    return [
        rules.RepetitionPenalty(1.2),
        rules.NoRepeatNgrams(3),
        rules.ForbiddenTokens([0, 1, 2, [4, 5]]),
        rules.TargetPrefix([[6, 5] if row % 3 else [] for row in range(count)]),
        rules.MinLength(4),
    ]


# Traces and memory.


def most_calls(shapes, calls_a_trace):
    """Four traces at most; on JAX one for each shape."""
    return calls_a_trace * (len(set(shapes)) if BACKEND == "jax" else 4)


def megabytes():
    resource = pytest.importorskip("resource")  # which Windows lacks
    gc.collect()
    statm = pathlib.Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 2**20
    # The peak, on systems that do not report present memory.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@needs_compiling
@pytest.mark.slow
def test_translate_in_a_second_pass_traces_and_keeps_nothing():
    def objects():
        gc.collect()
        return len(gc.get_objects())

    model = WordForWord()
    sentences = some_sentences(400)
    search = decoding.BeamSearch(num_beams=2)
    first = translate(sentences, model, search=search, batch_size=16)
    assert first == [word_for_word(sentence) for sentence in sentences]  # each in its place
    most = most_calls(model.shapes, CALLS_A_TRACE)
    traces, model.shapes, before = model.traces, [], objects()
    assert traces <= most
    assert translate(sentences, model, search=search, batch_size=16) == first
    assert model.traces == traces
    assert objects() - before < 100 + len(model.shapes)


@needs_compiling
@pytest.mark.slow
@pytest.mark.parametrize(
    "sentences",
    [some_sentences(160, longest=13), pytest.param(some_sentences(300), marks=pytest.mark.nightly)],
    ids=["some", "many"],
)
def test_translate_by_a_transformer_takes_no_memory_in_later_passes(sentences, monkeypatch):
    """With every rule."""

    def step(self, tokens, position, state):
        calls.append(tokens.shape)
        return plain(self, tokens, position, state)

    def once():
        own = every_rule(len(sentences))
        search = decoding.BeamSearch(4, rules=own)
        return translate(sentences, model, search=search, batch_size=16)

    calls, model = [], transformer()
    plain = type(model).step
    monkeypatch.setattr(type(model), "step", step)
    first = once()
    traces, before = len(calls), megabytes()
    # Rows and length tell shapes apart: one step's in a trace, and that of the beams.
    assert 0 < traces <= 2 * most_calls(calls, 2)
    for _ in range(3):
        assert once() == first
    assert len(calls) == traces
    assert megabytes() - before < 24


@needs_compiling
@pytest.mark.slow
def test_translate_compiles_the_encoder_once(monkeypatch):
    calls, model, sentences = [], transformer(), ["one two three", "four five one"] * 4
    plain = type(model).encode
    monkeypatch.setattr(
        type(model),
        "encode",
        lambda self, *args, **kwargs: calls.append(1) or plain(self, *args, **kwargs),
    )
    expected = translate(sentences, model)
    calls.clear()
    assert translate(sentences, model) == translate(sentences[:8], model) == expected
    assert calls == []


def test_translate_with_a_vocabulary_of_another_size_is_refused_before_any_work():
    model, vocabularies = WordForWord(), {"source_vocabulary": ENGLISH, "target_vocabulary": GERMAN}
    for argument in vocabularies:
        message = f"`{argument}` must have 9 entries, as in the model. Received: {argument}=5"
        arguments = {**vocabularies, argument: data.Vocabulary(["one"])}
        with pytest.raises(ValueError, match=f"^translate: {message}$"):
            decoding.translate(model, ["one"], **arguments)
    assert model.shapes == []


def test_vocabulary_that_pads_with_another_id_is_refused():
    class Padded(data.Vocabulary):
        padding_id = 4

    words, model, pairs = Padded(["one", "two"]), WordForWord(), [("one", "two")]
    for takes in (
        lambda: decoding.translate(model, ["one"], words, GERMAN),
        lambda: decoding.translate(model, ["one"], ENGLISH, words),
        lambda: decoding.translate_stream(model, "one", words, GERMAN),
        lambda: decoding.log_probabilities(model, pairs, words, GERMAN),
        lambda: data.translation_batches(pairs, ENGLISH, words, 1),
        lambda: data.token_batches(pairs, words, GERMAN, 9),
        lambda: rules.tokens_of(words, ["one"]),
    ):
        with pytest.raises(ValueError, match="vocabulary.padding_id` must be 0, which models"):
            takes()


def test_search_error_of_device_is_raised(monkeypatch):
    def failing(tensor):
        raise RuntimeError("device lost")

    monkeypatch.setattr(ops, "convert_to_numpy", failing)
    with pytest.raises(RuntimeError, match="device lost"):
        model = Undecided()
        decoding.GreedySearch()(model.step, model.encode(np.array([[4]]), 2), 1, 2)
