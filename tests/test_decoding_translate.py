"""Text in, text out: order, batches, bad input, and no trace or memory that a second pass adds."""

import functools
import gc
import pathlib
import re
import resource

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.tensors import BACKEND, CALLS_A_TRACE, needs_compiling
from tfattn import data, decoding

pytestmark = pytest.mark.usefixtures("dense_path")

ENGLISH = data.Vocabulary(["one", "two", "three", "four", "five"])
GERMAN = data.Vocabulary(["fünf", "vier", "drei", "zwei", "eins"])
SPECIAL = 4


class WordForWord:
    """Translates word i into word i of the other vocabulary, the fifth from the end into the fifth;
    "four" becomes two.

    Notes the shapes that it is given, and how often Python runs its step.
    """

    source_vocabulary_size = len(ENGLISH)
    target_vocabulary_size = len(GERMAN)

    def __init__(self):
        self.shapes, self.traces = [], 0

    def encode(self, source, max_length):
        self.shapes.append((*source.shape, max_length))
        assert source.dtype == "int32" and (source[:, 0] != 0).all()
        # The end, and after it nothing.
        assert ((source == ENGLISH.end_id).sum(axis=1) == 1).all()
        translated = np.where(source >= SPECIAL, len(GERMAN) + SPECIAL - 1 - source, source)
        return {"written": np.pad(translated, [(0, 0), (0, max(0, max_length - source.shape[1]))])}

    def step(self, tokens, position, state):
        self.traces += 1
        return ops.one_hot(ops.take(state["written"], position, axis=1), len(GERMAN)) * 20.0, state


WORDS = dict(zip(ENGLISH.words, [*GERMAN.words[:SPECIAL], *GERMAN.words[:3:-1]], strict=True))


def word_for_word(sentence):
    return " ".join(WORDS.get(word, "<unk>") for word in sentence.split())


def some_sentences(count, longest=23, seed=0):
    rng = np.random.default_rng(seed)
    return [
        " ".join(rng.choice(ENGLISH.words[SPECIAL:], size=rng.integers(0, longest + 1)))
        for _ in range(count)
    ]


def translate(sentences, model=None, **options):
    return decoding.translate(model or WordForWord(), sentences, ENGLISH, GERMAN, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "search",
    [
        decoding.greedy_search,
        functools.partial(decoding.beam_search, num_beams=3, num_results=2),
        functools.partial(decoding.sample, top_k=1),
        functools.partial(decoding.greedy_search, return_state=True),
    ],
    ids=["greedy", "beams", "sample", "with state"],
)
def test_each_sentence_is_translated_in_its_place(search):
    sentences = some_sentences(101)
    assert "" in sentences
    assert translate(sentences, search=search, batch_size=16) == [
        word_for_word(sentence) for sentence in sentences
    ]


class Undecided:
    """All tokens are as likely as each other."""

    def encode(self, source, max_length):
        return {"source": ops.convert_to_tensor(source)}

    def step(self, tokens, position, state):
        return ops.zeros((ops.shape(tokens)[0], len(GERMAN))), state


def test_a_seed_is_that_of_all_batches_and_not_of_each_anew():
    def drawn(seed):
        search = functools.partial(decoding.sample, seed=seed)
        options = {"model": Undecided(), "batch_size": 32, "max_length": 7}
        return translate(["one"] * 64, search=search, **options)

    found = drawn(1)
    assert found[:32] != found[32:]
    assert drawn(1) == found != drawn(2)
    assert drawn(keras.random.SeedGenerator(1)) == found
    with pytest.raises(ValueError, match="^sample: `seed` must be an integer of at least 0"):
        drawn(-1)


def test_an_empty_line_is_empty_and_does_not_reach_the_model():
    model = WordForWord()
    assert translate(["", "  \t", ""], model) == ["", "", ""] and translate([], model) == []
    assert model.shapes == []
    assert translate(["", "two", " "], model) == ["", "zwei", ""]
    assert model.shapes == [(1, 8, 24)]


def test_unknown_words_and_characters_are_translated_like_any_word():
    assert translate(["one 猫 \x00 <eos> two", "🙂"]) == ["eins <unk> <unk> <unk> zwei", "<unk>"]


def test_a_generator_of_sentences_is_fine():
    assert translate(sentence for sentence in ("two", "one")) == ["zwei", "eins"]


@pytest.mark.slow
def test_a_line_much_longer_than_the_others_is_a_batch_of_its_own():
    model, long = WordForWord(), " ".join(["three"] * 501)
    assert translate(["one", long, "two one"], model, batch_size=8) == [
        "eins",
        "drei " * 500 + "drei",
        "zwei eins",
    ]
    # 501 words and the end make 504; 1.5 times that and 8 make 764, and 768 of it.
    assert model.shapes == [(1, 504, 768), (2, 8, 24)]


@pytest.mark.slow
def test_batches_are_full_like_in_length_and_of_few_shapes():
    model = WordForWord()
    translate(some_sentences(1000, longest=40), model, batch_size=32)
    assert {rows for rows, *_ in model.shapes} <= {1, 2, 4, 8, 16, 32}
    assert {length % 8 for _, length, _ in model.shapes} == {0}
    assert sum(rows for rows, *_ in model.shapes) < 1.1 * 1000
    lengths = [length for _, length, _ in model.shapes]
    assert lengths == sorted(lengths, reverse=True) and len(set(model.shapes)) < 15


def test_max_length_is_the_callers_where_given():
    model = WordForWord()
    assert translate(["one two three", "four"], model, max_length=2) == ["eins zwei", "vier"]
    assert model.shapes == [(2, 8, 2)]


def test_a_sentence_gets_room_by_its_own_length_and_no_more_than_the_model_has():
    def search(step, state, batch_size, max_length, **ids):
        limits.append(list(max_length))
        return np.full((batch_size, 1), ids["end_id"])

    limits, model = [], WordForWord()
    # 15, 9 and 8 tokens with the end: 16, 16 and 8 when padded
    sentences = ["one " * 14, "one " * 8, "one " * 7]
    translate(sentences, model, search=search, batch_size=4)
    assert limits == [[32, 32, 24, 24]]  # the last of them fills the batch
    model.max_target_length = 27
    translate(sentences, model, search=search, batch_size=4)
    assert limits[1] == [27, 27, 24, 24]
    assert [length for *_, length in model.shapes] == [32, 27]


@pytest.mark.slow
def test_learned_positions_limit_what_is_read_and_what_is_written():
    positions = tfattn.LearnedPositionalEncoding(13)
    model = transformer(positions=positions)
    assert model.max_source_length == model.max_target_length == 13
    # Twelve words and the end are as many as fit; a multiple of 8 would be too many.
    for words in (5, 9, 12):
        assert len(translate([" ".join(["one"] * words), "six"], model)) == 2
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


def test_begin_end_and_padding_are_those_of_the_target_vocabulary():
    class Other(data.Vocabulary):
        begin_id, end_id = 3, 2

    def search(step, state, batch_size, max_length, **ids):
        assert ids == {"begin_id": 3, "end_id": 2, "padding_id": 0}
        return np.array([[5, 4, 2, 0]])

    target = Other(GERMAN.words[SPECIAL:])
    assert decoding.translate(WordForWord(), ["one"], ENGLISH, target, search=search) == [
        "vier fünf"
    ]


@pytest.mark.slow
def test_a_progress_bar_counts_the_sentences(capsys):
    translate(["one", "", "two three"] * 5, progress=True, batch_size=4)
    assert "15/15" in capsys.readouterr().out
    translate(["one"])
    assert capsys.readouterr().out == ""


def transformer(**options):
    model = tfattn.Transformer(
        len(ENGLISH), len(GERMAN), num_layers=1, width=12, num_heads=2, hidden_dim=14, **options
    )
    model.build(((None, None), (None, None)))
    rng = np.random.default_rng(7)
    model.set_weights([rng.normal(size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])
    return model


def recurrent():
    model = tfattn.BahdanauSeq2Seq(len(ENGLISH), len(GERMAN), width=12, units=14)
    model.build(((None, None), (None, None)))
    rng = np.random.default_rng(7)
    model.set_weights([rng.normal(size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])
    return model


MODELS = {"transformer": transformer, "recurrent": recurrent}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_beams", [None, 3], ids=["greedy", "beams"])
def test_how_a_batch_is_padded_changes_no_translation(num_beams, name):
    model, sentences = MODELS[name](), some_sentences(24, longest=9, seed=3)
    search = (
        functools.partial(decoding.beam_search, num_beams=num_beams)
        if num_beams
        else decoding.greedy_search
    )
    options = {"search": search}  # and a limit for each sentence, which its company has no part in
    together = translate(sentences, model, batch_size=32, **options)
    assert len(set(together)) > 5
    # In the company of longer sentences, which pad them further.
    longer = some_sentences(9, longest=23, seed=5)
    assert translate([*longer, *sentences], model, batch_size=16, **options)[9:] == together
    assert translate(sentences, model, batch_size=1, **options) == together


def most_calls(shapes, calls_a_trace):
    """Four traces at most; on JAX one for each shape."""
    return calls_a_trace * (len(set(shapes)) if BACKEND == "jax" else 4)


def megabytes():
    gc.collect()
    statm = pathlib.Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 2**20
    # The peak, where nothing tells what is held now.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@needs_compiling
@pytest.mark.slow
def test_a_second_pass_of_a_thousand_sentences_traces_nothing_and_keeps_nothing():
    def objects():
        gc.collect()
        return len(gc.get_objects())

    model = WordForWord()
    sentences = some_sentences(1000)
    search = functools.partial(decoding.beam_search, num_beams=2)
    first = translate(sentences, model, search=search, batch_size=32)
    most = most_calls(model.shapes, CALLS_A_TRACE)
    traces, model.shapes, before = model.traces, [], objects()
    assert traces <= most
    assert translate(sentences, model, search=search, batch_size=32) == first
    assert model.traces == traces
    assert objects() - before < 100 + len(model.shapes)


@needs_compiling
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_traces_nothing_and_takes_no_memory_in_a_second_pass(name, monkeypatch):
    def step(self, tokens, position, state):
        calls.append(tokens.shape)
        return plain(self, tokens, position, state)

    calls, model = [], MODELS[name]()
    plain = type(model).step
    monkeypatch.setattr(type(model), "step", step)
    search = functools.partial(decoding.beam_search, num_beams=3)
    sentences = some_sentences(400)
    first = translate(sentences, model, search=search, batch_size=32)
    traces, before = len(calls), megabytes()
    # Rows and length tell shapes apart: one step's in a trace, and that of the beams.
    assert 0 < traces <= 2 * most_calls(calls, 2)
    for _ in range(3):
        assert translate(sentences, model, search=search, batch_size=32) == first
    assert len(calls) == traces
    assert megabytes() - before < 24


@pytest.mark.parametrize(
    "argument, value, expected, received",
    [
        ("model", object, "have `encode` and `step`, see `tfattn.decoding`", str(object)),
        ("sentences", "one two", "be a collection of strings", "'one two'"),
        ("sentences", ["one", None], "hold strings", "None"),
        ("source_vocabulary", data.Vocabulary(["one"]), "have 9 entries, as the model's has", "5"),
        ("target_vocabulary", data.Vocabulary(["eins"]), "have 9 entries, as the model's has", "5"),
        ("search", "greedy", "be callable, such as `greedy_search`", "'greedy'"),
        ("batch_size", 0, "be a positive integer", "0"),
        ("max_length", 0, "be a positive integer", "0"),
        ("progress", 1, "be True or False", "1"),
    ],
)
def test_a_bad_argument_is_refused_before_any_work(argument, value, expected, received):
    model = WordForWord()
    arguments = {
        "model": model,
        "sentences": ["one"],
        "source_vocabulary": ENGLISH,
        "target_vocabulary": GERMAN,
        argument: value,
    }
    sentence = f"translate: `{argument}` must {expected}. Received: {argument}={received}"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        decoding.translate(**arguments)
    assert model.shapes == []
