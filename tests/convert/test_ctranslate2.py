"""CTranslate2's folders: equal tokens and scores, and what is refused by its name."""

import json
import pathlib

import keras
import numpy as np
import pytest

import tfattn
from tests.convert.parity import randomised, refused
from tests.tensors import numpy
from tfattn import data, scalings
from tfattn.convert import CTranslate2, to_ctranslate2

SOURCE = data.Vocabulary([f"s{i}" for i in range(13)])
TARGET = data.Vocabulary([f"t{i}" for i in range(15)])
SIZES = {"num_layers": 2, "width": 12}
SENTENCES = [
    "s1 s2 s3 s4 s5 s6 s7",
    "s0",
    "",
    "s12 s11 unheard s9 s9",
    "s3 s1",
    "s8 s7 s6 s5 s4 s3 s2 s1 s0 s1 s2 s3",
]
NOTHING_ADDED = keras.layers.Identity()
BLOCK = tfattn.TransformerEncoderBlock


def attention(**options):
    return tfattn.MultiHeadAttention(3, 4, **options)


def block(**options):
    """A block with the parts that are given."""
    return BLOCK(**{"num_heads": 3, "hidden_dim": 7} | options)


def parted(part, **options):
    """A block with this attention or network."""
    sizes = {"hidden_dim": 7} if isinstance(part, tfattn.MultiHeadAttention) else {"num_heads": 3}
    name = "attention" if "hidden_dim" in sizes else "feed_forward"
    return BLOCK(**sizes, **{name: part}, **options)


def within(positions):
    """Positions within attention, and none added."""
    return {"block": parted(attention(positions=positions)), "positions": NOTHING_ADDED}


LEARNED = tfattn.LearnedPositionalEncoding
GOES = {
    "post-norm": {"block": block(dropout=0.3)},
    "pre-norm": {"block": block(norm_first=True)},
    "shared": {"block": block(norm_first=True), "share_embeddings": True},
    "learned positions": {"block": block(), "positions": LEARNED(23)},
    "learned positions, scaled": {"block": block(), "positions": LEARNED(29, input_scale=2.5)},
    "other sinusoids": {
        "block": block(),
        "positions": tfattn.SinusoidalPositionalEncoding(0.7, max_wavelength=37.0),
    },
    "no positions": {"block": block(), "positions": NOTHING_ADDED},
    "epsilon": {"block": block(norm=keras.layers.LayerNormalization(epsilon=0.1))},
    "RMS norm": {"block": block(norm=keras.layers.RMSNormalization(epsilon=0.03), norm_first=True)},
    "gelu": {"block": parted(tfattn.PositionwiseFeedForward(7, activation="gelu"))},
    "silu": {"block": parted(tfattn.PositionwiseFeedForward(7, activation="silu"))},
    "tanh": {"block": parted(tfattn.PositionwiseFeedForward(7, activation="tanh"))},
    "gated": {"block": parted(tfattn.GatedFeedForward(7))},
    "gated, with biases": {
        "block": parted(tfattn.GatedFeedForward(7, activation="gelu", use_bias=True))
    },
    "heads without biases": {"block": parted(attention(use_bias=False))},
    "scores unscaled": {"block": parted(attention(score=tfattn.DotProductScore(scale=1.0)))},
    "one key head": {"block": parted(attention(num_key_value_heads=1))},
    "rotary": within(tfattn.RotaryPositions()),
    "rotary, interleaved": within(tfattn.RotaryPositions(base=37.0, interleaved=True)),
    "rotary, in part": within(tfattn.RotaryPositions(rotary_dim=2)),
}


def built(share_embeddings=False, **options):
    """A model with weights that no initializer gives, which never writes padding."""
    sizes = [len(TARGET)] if share_embeddings else [len(SOURCE), len(TARGET)]
    model = tfattn.Transformer(*sizes, share_embeddings=share_embeddings, **{**SIZES, **options})
    model.build_for_any()
    randomised(model, seed=1)
    for variable in model.weights:
        if variable.path.endswith(("gamma", "scale")):
            variable.assign(variable + 1.0)
        elif "block" in variable.path:
            variable.assign(0.5 * variable)  # of large ones float32 rounds too much
    for stack in (model.encoder, model.decoder):
        table = numpy(stack.embedding.embeddings).copy()
        table[[0, 3]] = 0.0  # shared embeddings would end each sentence at once
        stack.embedding.embeddings.assign(table)
    if model.output_dense is not None:
        model.output_dense.bias.assign([-50.0, *numpy(model.output_dense.bias)[1:]])
    return model


def vocabularies(model):
    return [TARGET, TARGET] if model.share_embeddings else [SOURCE, TARGET]


def sentences(model):
    return [s.replace("s", "t") for s in SENTENCES] if model.share_embeddings else SENTENCES


@pytest.fixture(scope="module")
def engine():
    return pytest.importorskip("ctranslate2")


@pytest.fixture(scope="module", params=GOES)
def pair(request, engine, tmp_path_factory):
    """Our model, and its folder as loaded."""
    model = built(**GOES[request.param])
    folder = tmp_path_factory.mktemp("served") / "new"
    to_ctranslate2(model, vocabularies(model), folder, max_length=41)
    return model, CTranslate2(folder)


# What is about the search: the logits of every kind are compared by the tests of `pair`.
searched = pytest.mark.parametrize("pair", ["post-norm", "shared", "rotary"], indirect=True)


@pytest.mark.slow(keep=2)
def test_greedy_search_writes_the_same(pair):
    model, served = pair
    wanted = tfattn.translate(model, sentences(model), *vocabularies(model))
    assert served.translate(sentences(model)) == wanted
    assert len(set(wanted)) > 1 and wanted[2] == ""


@searched
def test_a_limit_holds_for_both(pair):
    model, served = pair
    wanted = tfattn.translate(model, sentences(model), *vocabularies(model), max_length=3)
    assert served.translate(sentences(model), max_length=3) == wanted


@pytest.mark.slow(keep=2)
def test_tokens_that_are_given_have_the_same_log_probabilities(pair):
    model, served = pair
    sources, targets = [[4, 7, 9, 1, 5], [16, 3 + 3]], [[5, 18, 6, 11], [12, 4, 1, 9]]
    end = SOURCE.end_id
    source = np.array([[*sources[0], end], [*sources[1], end, 0, 0, 0]], "int32")
    target_in = np.array([[2, *targets[0]], [2, *targets[1]]], "int32")
    logits = numpy(model((source, target_in)))
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    target_out = np.array([[*targets[0], end], [*targets[1], end]])
    wanted = np.take_along_axis(log_probabilities, target_out[..., None], -1)[..., 0]
    words = [each.words for each in vocabularies(model)]
    found = served.translator.score_batch(
        [[words[0][i] for i in row] for row in sources],
        [[words[1][i] for i in row] for row in targets],
    )
    np.testing.assert_allclose([row.log_probs for row in found], wanted, atol=1e-4)


@searched
@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_hypothesis_of_both_beam_searches_has_one_score(pair, length_penalty):
    model, served = pair
    words, ours = vocabularies(model), [s for s in sentences(model) if s]
    rows = [[*words[0].encode(s), SOURCE.end_id] for s in ours]
    source = np.zeros((len(rows), 13), "int32")
    for row, ids in zip(source, rows, strict=True):
        row[: len(ids)] = ids
    found = tfattn.beam_search(
        model.step,
        model.encode(source, max_length=9),
        len(source),
        9,
        num_beams=5,
        num_results=5,
        length_penalty=length_penalty,
    )
    by_tokens = {}
    for i, (tokens, scores) in enumerate(zip(*map(numpy, found[:2]), strict=True)):
        for row, score in zip(tokens, scores, strict=True):
            by_tokens[i, tuple(words[1].words[j] for j in row if j)] = score
    theirs = served.translator.translate_batch(
        [[words[0].words[j] for j in row[:-1]] for row in rows],
        beam_size=5,
        num_hypotheses=5,
        length_penalty=length_penalty,
        min_decoding_length=0,
        max_decoding_length=9,
        return_scores=True,
        return_end_token=True,
    )
    both = [
        (by_tokens[i, tuple(tokens)], score)
        for i, result in enumerate(theirs)
        for tokens, score in zip(result.hypotheses, result.scores, strict=True)
        if (i, tuple(tokens)) in by_tokens
    ]
    assert len(both) > 5
    np.testing.assert_allclose(*zip(*both, strict=True), atol=1e-4)


@searched
@pytest.mark.slow(keep=2)
def test_beams_do_not_depend_on_what_else_is_translated(pair):
    """Each sentence is searched up to its own limit, whatever the longest of the call has."""
    model, served = pair
    ours = sentences(model)
    alone = [served.translate([sentence], num_beams=4)[0] for sentence in ours]
    assert served.translate(ours, num_beams=4) == alone


@pytest.fixture(scope="module")
def plain():
    """Our smallest model that goes."""
    return built(**GOES["post-norm"])


@pytest.fixture
def folder(plain, engine, tmp_path):
    """What is written of it, for a test to spoil."""
    to_ctranslate2(plain, [SOURCE, TARGET], tmp_path / "new")
    return tmp_path / "new"


def test_the_engine_itself_loads_the_folder(folder, engine):
    """As its own users do it: tokens in, tokens out."""
    translator = engine.Translator(str(folder))
    words = data.load_vocabulary(folder / "source.vocabulary")
    tokens = [words.words[i] for i in words.encode(SENTENCES[0])]
    [found] = translator.translate_batch([tokens], beam_size=1, max_decoding_length=24)
    assert " ".join(found.hypotheses[0]) == CTranslate2(folder).translate(SENTENCES[:1])[0]


@pytest.mark.parametrize("quantization", ["int8", "int8_float32", "int16", "float16", "float32"])
def test_it_is_quantised(quantization, plain, engine, tmp_path):
    sizes = {}
    for name in (None, quantization):
        to_ctranslate2(plain, [SOURCE, TARGET], tmp_path / str(name), name)
        sizes[name] = (tmp_path / str(name) / "model.bin").stat().st_size
    found = CTranslate2(tmp_path / quantization).translate(SENTENCES)
    assert [bool(line) for line in found] == [bool(line) for line in SENTENCES]
    in_matrices = sum(np.prod(w.shape) for w in plain.weights if len(w.shape) > 1)
    spared = {"int8": 3, "int8_float32": 3, "int16": 2, "float16": 2, "float32": 0}[quantization]
    fewer = sizes[None] - sizes[quantization]
    assert fewer > 0.5 * spared * in_matrices if spared else fewer == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "mixed_float16"])
def test_without_quantization_weights_of_any_type_are_written_as_float32(dtype, engine, tmp_path):
    sizes = {"num_heads": 3, "hidden_dim": 7}
    narrow = built(**sizes, dtype=dtype)
    wide = built(**sizes)
    wide.set_weights([numpy(variable).astype("float32") for variable in narrow.weights])
    contents = []
    for name, model in (("narrow", narrow), ("wide", wide)):
        to_ctranslate2(model, [SOURCE, TARGET], tmp_path / name, max_length=11)
        contents.append((tmp_path / name / "model.bin").read_bytes())
    assert contents[0] == contents[1]


def test_int8_is_smaller(engine, tmp_path):
    model = built(**GOES["post-norm"], width=48)
    sizes = {}
    for name in ("float32", "int8"):
        to_ctranslate2(model, [SOURCE, TARGET], tmp_path / name, name, max_length=7)
        sizes[name] = (tmp_path / name / "model.bin").stat().st_size
    assert sizes["int8"] < 0.4 * sizes["float32"]


def test_subwords_go_too(engine, tmp_path):
    pytest.importorskip("sentencepiece")
    lines = ["low lower lowest", "new newer newest"]
    words = data.SubwordVocabulary.from_sentences(lines, size=40)
    model = tfattn.Transformer(len(words), **SIZES, block=block(), share_embeddings=True)
    model.build_for_any()
    randomised(model)
    to_ctranslate2(model, [words, words], tmp_path / "new")
    served = CTranslate2(tmp_path / "new")
    assert served.translate(lines) == tfattn.translate(model, lines, words, words)


def by_commas(sentence):
    return sentence.split(",")


def test_a_tokenizer_of_ones_own_is_handed_over_again(plain, engine, tmp_path):
    own = data.Vocabulary([f"s{i}" for i in range(13)], tokenizer=by_commas)
    to_ctranslate2(plain, [own, TARGET], tmp_path / "new")
    said = r"`tokenizers\[0\]` must be the function that source\.vocabulary was made with, .*commas"
    with pytest.raises(ValueError, match=said):
        CTranslate2(tmp_path / "new")
    with pytest.raises(ValueError, match="`tokenizers` must be a pair of functions or None"):
        CTranslate2(tmp_path / "new", by_commas)
    with pytest.raises(ValueError, match="`tokenizer` must be left out"):
        CTranslate2(tmp_path / "new", [by_commas, by_commas])
    served = CTranslate2(tmp_path / "new", [by_commas, None])
    wanted = tfattn.translate(plain, ["s1,s2,s3"], own, TARGET)
    assert served.translate(["s1,s2,s3"]) == wanted != served.translate(["s1 s2 s3"])


def test_lora_is_added_to_its_matrices(engine, tmp_path):
    model, plain = built(**GOES["post-norm"]), built(**GOES["post-norm"])
    for each in (*model.encoder.blocks, *model.decoder.blocks):
        each.self_attention.query_dense.enable_lora(2)
        each.feed_forward.inner.enable_lora(2)
    for variable in model.trainable_variables:
        if "lora" in variable.path:
            variable.assign(0.4 * np.random.default_rng(1).normal(size=tuple(variable.shape)))
    wanted = tfattn.translate(model, SENTENCES, SOURCE, TARGET)
    assert wanted != tfattn.translate(plain, SENTENCES, SOURCE, TARGET)
    to_ctranslate2(model, [SOURCE, TARGET], tmp_path / "new")
    assert CTranslate2(tmp_path / "new").translate(SENTENCES) == wanted


@keras.saving.register_keras_serializable("tests.ctranslate2")
class OwnAttention(tfattn.MultiHeadAttention):
    """Might compute anything."""


CANNOT = {
    "score": parted(attention(score=tfattn.CosineScore())),
    "normalizer": parted(attention(normalizer=tfattn.AttentionSinks())),
    "num_key_value_heads": parted(
        tfattn.MultiHeadAttention(4, 3, num_key_value_heads=2),
    ),
    "key_dim": parted(tfattn.MultiHeadAttention(3, 5)),
    "value_dim": parted(attention(value_dim=5)),
    "use_gate": parted(attention(use_gate=True)),
    "sliding_window": parted(attention(sliding_window=3)),
    "activation": parted(tfattn.PositionwiseFeedForward(7, activation="selu")),
    "norm": block(norm=keras.layers.LayerNormalization(center=False)),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_the_engine_lacks_is_refused_by_name(name, tmp_path):
    model = built(block=CANNOT[name])
    with refused(name):
        to_ctranslate2(model, [SOURCE, TARGET], tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("positions", tfattn.AlibiPositions()),
        ("positions", tfattn.RelativePositionBias()),
        ("scaling", tfattn.RotaryPositions(scaling=scalings.linear(2.0))),
    ],
)
def test_positions_that_the_engine_lacks_are_refused_by_name(name, positions, tmp_path):
    with refused(name):
        to_ctranslate2(built(**within(positions)), [SOURCE, TARGET], tmp_path / "new")


def test_positions_are_not_added_beside_rotary_ones(tmp_path):
    model = built(block=within(tfattn.RotaryPositions())["block"])
    with refused("positions"):
        to_ctranslate2(model, [SOURCE, TARGET], tmp_path / "new")


def test_parts_of_other_classes_are_refused(tmp_path):
    mine = parted(OwnAttention(3, 4))
    for model, name in (
        (built(block=mine), "attention"),
        (built(block=parted(keras.layers.Dense(12))), "feed_forward"),
        (built(block=block(norm=keras.layers.UnitNormalization())), "norm"),
        (built(block=block(), positions=keras.layers.Rescaling(2.0)), "positions"),
    ):
        with pytest.raises(ValueError, match=f"to_ctranslate2: `{name}` must be one of"):
            to_ctranslate2(model, [SOURCE, TARGET], tmp_path / "new")


def test_a_model_without_weights_or_with_quantised_ones_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`model` must be built"):
        model = tfattn.Transformer(17, 19, **SIZES, block=block())
        to_ctranslate2(model, [SOURCE, TARGET], tmp_path / "new")
    model = built(block=block())
    model.encoder.blocks[0].feed_forward.inner.quantize("int8")
    with refused("quantize"):
        to_ctranslate2(model, [SOURCE, TARGET], tmp_path / "new")


def test_vocabularies_that_do_not_fit_are_refused(plain, tmp_path):
    def refusal(vocabularies, match):
        with pytest.raises(ValueError, match=match):
            to_ctranslate2(plain, vocabularies, tmp_path / "new")

    refusal([TARGET, TARGET], r"`vocabularies\[0\]` must have 17 entries")
    refusal(TARGET, "`vocabularies` must be a pair")
    refusal([SOURCE, "words"], r"`vocabularies\[1\]` must be a vocabulary")
    pytest.importorskip("sentencepiece")
    other = data.Vocabulary([f"t{i}" for i in range(15)])
    other.words = ("<pad>", "<unk>", "<s>", "</s>", *other.words[4:])
    refusal([SOURCE, other], "must write unknown, begin and end alike")


def test_a_folder_with_files_in_it_is_left_alone(plain, folder):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match="`folder` must be new, or an empty folder"):
        to_ctranslate2(plain, [SOURCE, TARGET], folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_an_unknown_quantization_is_refused(plain, tmp_path):
    with pytest.raises(ValueError, match="`quantization` must be one of"):
        to_ctranslate2(plain, [SOURCE, TARGET], tmp_path / "new", "int4")


def test_a_folder_of_other_vocabularies_is_refused(folder):
    """Of as many words, so that no size tells."""
    other = data.Vocabulary([f"u{i}" for i in range(15)])
    other.save(folder / "target.vocabulary")
    with pytest.raises(ValueError, match="must hold the vocabularies that its model was written"):
        CTranslate2(folder)
    (folder / "target_vocabulary.json").write_text(json.dumps(other.words))
    with pytest.raises(ValueError, match="must hold the vocabularies that its model was written"):
        CTranslate2(folder)


def test_a_folder_whose_vocabulary_splits_otherwise_is_refused(folder):
    """The same words, by another tokenizer."""
    other = data.Vocabulary([f"s{i}" for i in range(13)], tokenizer=data.Characters())
    assert other.words == SOURCE.words
    other.save(folder / "source.vocabulary")
    with pytest.raises(ValueError, match="must hold the vocabularies that its model was written"):
        CTranslate2(folder)


@pytest.mark.parametrize("damage", ["empty", "half", "text", "gone"])
def test_a_damaged_model_is_refused(damage, folder):
    path: pathlib.Path = folder / "model.bin"
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "half": content[: len(content) // 2]}.get(damage, b"text" * 99))
    if damage == "gone":
        path.unlink()
    with pytest.raises(ValueError, match="`folder` must hold the model.bin that `tfattn.convert"):
        CTranslate2(folder)


def test_a_model_of_the_same_sizes_in_its_place_is_refused(plain, folder, tmp_path):
    other = keras.models.clone_model(plain)
    to_ctranslate2(other, [SOURCE, TARGET], tmp_path / "other")
    (tmp_path / "other" / "model.bin").replace(folder / "model.bin")
    with pytest.raises(ValueError, match="`folder` must hold the model.bin that `tfattn.convert"):
        CTranslate2(folder)


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("eos_token", "t5", "have .*'eos_token': '<eos>'.* in its config.json"),
        ("decoder_start_token", "none such", "have .*'decoder_start_token': '<bos>'"),
        ("tfattn_max_length", "many", "be one that `tfattn.convert.to_ctranslate2` wrote"),
        ("tfattn_max_length", -1, "be one that `tfattn.convert.to_ctranslate2` wrote"),
        ("tfattn_files", 3, "be one that `tfattn.convert.to_ctranslate2` wrote"),
    ],
)
def test_an_edited_configuration_is_refused(name, value, expected, folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(ValueError, match=f"^CTranslate2: `folder` must {expected}"):
        CTranslate2(folder)


@pytest.mark.parametrize("options", [{"device": "tpu"}, {"compute_type": "int3"}, {"thread": 1}])
def test_options_that_the_engine_does_not_take_are_named_and_not_the_folder(options, folder):
    match = "^CTranslate2: `options` must be options with which CTranslate2 can load .* it says: "
    with pytest.raises(ValueError, match=match):
        CTranslate2(folder, **options)


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 100_000, None])
def test_a_folder_that_another_wrote_is_refused(content, folder):
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match="must be one that `tfattn.convert.to_ctranslate2` wrote"):
        CTranslate2(folder)


def test_no_folder_is_said_to_be_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="`folder` must name an existing folder"):
        CTranslate2(tmp_path / "none")


def test_what_is_translated_is_checked(folder):
    served = CTranslate2(folder)
    assert served.translate([]) == [] and served.translate(["", ""]) == ["", ""]
    for options, match in (
        ({"num_beams": 0}, "`num_beams` must be a positive integer"),
        ({"length_penalty": -1.0}, "`length_penalty` must be"),
        ({"batch_size": 0}, "`batch_size` must be"),
        ({"max_length": 0}, "`max_length` must be"),
    ):
        with pytest.raises(ValueError, match=match):
            served.translate(SENTENCES, **options)
    with pytest.raises(ValueError, match="`sentences` must be a collection of strings"):
        served.translate("s1 s2")


@pytest.mark.slow
def test_a_sentence_beyond_the_positions_is_refused(engine, tmp_path):
    model = built(**GOES["learned positions"])
    to_ctranslate2(model, [SOURCE, TARGET], tmp_path / "new")
    served = CTranslate2(tmp_path / "new")
    longest = " ".join(["s1"] * 22)  # and its end
    wanted = tfattn.translate(model, [longest], SOURCE, TARGET)
    assert served.translate([longest]) == wanted
    with pytest.raises(ValueError, match=r"`sentences\[1\]` must have at most 22 tokens"):
        served.translate(["s1", f"{longest} s2"])


def test_a_max_length_beyond_the_positions_is_refused(engine, tmp_path):
    """As `tfattn.translate` refuses it, and not cut in silence."""
    model = built(**GOES["learned positions"])
    to_ctranslate2(model, [SOURCE, TARGET], tmp_path / "new")
    served = CTranslate2(tmp_path / "new")
    with pytest.raises(ValueError):
        tfattn.translate(model, ["s1"], SOURCE, TARGET, max_length=24)
    with pytest.raises(ValueError, match=r"`max_length` must be at most 23, .*max_length=24"):
        served.translate(["s1"], max_length=24)
    wanted = tfattn.translate(model, ["s1"], SOURCE, TARGET, max_length=23)
    assert served.translate(["s1"], max_length=23) == wanted
