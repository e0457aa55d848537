"""CTranslate2's folders: equal tokens and scores, and what is refused by its name."""

import contextlib
import functools

import keras
import numpy as np
import pytest

import tfattn
from tests.convert.parity import randomized, refused
from tests.helpers.searches import eagerly
from tests.helpers.tensors import numpy
from tfattn import data, scalings
from tfattn.convert import CTranslate2, to_ctranslate2

pytestmark = pytest.mark.filterwarnings(r"ignore:[\w.]+. `source_vocabulary` lacks words")

SOURCE = data.Vocabulary([f"s{i}" for i in range(13)])
TARGET = data.Vocabulary([f"t{i}" for i in range(15)])
WORDS = [SOURCE, TARGET]
SENTENCES = [
    "s1 s2 s3 s4 s5 s6 s7",
    "s0",
    "",
    "s12 s11 unheard s9 s9",
    "s3 s1",
    "s8 s7 s6 s5 s4 s3 s2 s1 s0 s1 s2 s3",
]
LINES = ["low lower lowest", "new", "", "newer low", "lowest", "newest newer new"]
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
ROTARY = tfattn.RotaryPositions()
GATED = tfattn.GatedFeedForward(7, activation="gelu", use_bias=True)
UNSCALED = tfattn.DotProductScore(scale=1.0)
GOES = {
    "post-norm": {"block": block(dropout=0.3)},
    "shared": {"block": block(norm_first=True), "share_embeddings": True, "seed": 5},
    "rotary, one key head, scores unscaled, LoRA": {
        "block": parted(attention(positions=ROTARY, num_key_value_heads=1, score=UNSCALED)),
        "positions": NOTHING_ADDED,
        "lora": True,
    },
    "rotary in part, interleaved": within(
        tfattn.RotaryPositions(base=37.0, interleaved=True, rotary_dim=2)
    ),
    "learned positions, gelu": {
        "block": parted(tfattn.PositionwiseFeedForward(7, activation="gelu")),
        "positions": LEARNED(23),
    },
    "learned positions, scaled; silu": {
        "block": parted(tfattn.PositionwiseFeedForward(7, activation="silu")),
        "positions": LEARNED(29, input_scale=2.5),
    },
    "other sinusoids, tanh, epsilon": {
        "block": parted(
            tfattn.PositionwiseFeedForward(7, activation="tanh"),
            norm=keras.layers.LayerNormalization(epsilon=0.1),
        ),
        "positions": tfattn.SinusoidalPositionalEncoding(0.7, max_wavelength=37.0),
    },
    "RMS norm, gated": {
        "block": parted(
            tfattn.GatedFeedForward(7),
            norm=keras.layers.RMSNormalization(epsilon=0.03),
            norm_first=True,
        ),
    },
    "gated with biases, heads without, no positions": {
        "block": BLOCK(attention=attention(use_bias=False), feed_forward=GATED),
        "positions": NOTHING_ADDED,
    },
}


@functools.cache
def subwords():
    return [data.SubwordVocabulary.from_sentences(LINES, size=40)] * 2


def empty(share_embeddings=False, **options):
    sizes = [40] if share_embeddings else map(len, WORDS)
    options = {"num_layers": 2, "width": 12, "share_embeddings": share_embeddings, **options}
    model = tfattn.Transformer(*sizes, **options)
    model.build_for_any()
    return model


def built(lora=False, seed=1, **options):
    """A model with weights that no initializer gives, which never writes padding."""
    model = empty(**options)
    for each in (*model.encoder.blocks, *model.decoder.blocks) if lora else ():
        each.self_attention.query_dense.enable_lora(2)
        each.feed_forward.inner.enable_lora(2)
    randomized(model, seed=seed)
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


@pytest.fixture(scope="module")
def engine():
    return pytest.importorskip("ctranslate2")


@pytest.fixture(scope="module", params=GOES)
def pair(request, engine, tmp_path_factory):
    """Our model, and its folder as loaded; its vocabularies and some sentences."""
    model = built(**GOES[request.param])
    words, lines = (subwords(), LINES) if model.share_embeddings else (WORDS, SENTENCES)
    folder = tmp_path_factory.mktemp("served") / "new"
    to_ctranslate2(model, words, folder, max_length=41)
    return model, CTranslate2(folder), words, lines


def translated(model, lines, words, **options):
    """By our own greedy search."""
    with eagerly():
        return tfattn.translate(model, lines, *words, **options)


# What is about the search; the logits of every kind are compared.
@pytest.mark.slow
@pytest.mark.parametrize("pair", ["post-norm", "shared"], indirect=True)
def test_ctranslate2_greedy_search_writes_the_same_translations(pair):
    model, served, words, lines = pair
    wanted = translated(model, lines, words)
    with (
        pytest.warns(UserWarning, match="^CTranslate2.translate: `source_vocabulary` lacks")
        if (words == WORDS)
        else contextlib.nullcontext()
    ):
        assert served.translate(lines) == wanted
    assert len(set(wanted)) > 1 and wanted[2] == ""
    short = translated(model, lines, words, max_length=3)
    assert served.translate(lines, max_length=3) == short
    # As the engine's own users do it: tokens in, tokens out.
    tokens = [[words[0].words[i] for i in words[0].encode(lines[0])]]
    [found] = served.translator.translate_batch(tokens, beam_size=1, max_decoding_length=3)
    ids = [words[1].words.index(word) for word in found.hypotheses[0]]
    assert words[1].decode(ids) == short[0]


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("wanted_first", ["padding", "end"])
def test_ctranslate2_never_writes_padding_and_may_write_nothing(wanted_first, tmp_path):
    model = built(**GOES["post-norm"])
    bias = np.array(numpy(model.output_dense.bias))
    bias[0 if wanted_first == "padding" else TARGET.end_id] = 9.0
    model.output_dense.bias.assign(bias)
    to_ctranslate2(model, WORDS, tmp_path / "new")
    wanted = translated(model, SENTENCES, WORDS, max_length=5)
    assert CTranslate2(tmp_path / "new").translate(SENTENCES, max_length=5) == wanted
    assert all(wanted[:2]) if wanted_first == "padding" else not any(wanted)


@pytest.mark.slow
def test_ctranslate2_gives_tokens_the_log_probabilities_of_the_model(pair):
    model, served, words, _ = pair
    sources, targets = [[4, 7, 9, 1, 5], [16, 3 + 3]], [[5, 18, 6, 11], [12, 4, 1, 9]]
    end = SOURCE.end_id
    source = np.array([[*sources[0], end], [*sources[1], end, 0, 0, 0]], "int32")
    target_in = np.array([[2, *targets[0]], [2, *targets[1]]], "int32")
    logits = numpy(model((source, target_in)))
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    target_out = np.array([[*targets[0], end], [*targets[1], end]])
    wanted = np.take_along_axis(log_probabilities, target_out[..., None], -1)[..., 0]
    found = served.translator.score_batch(
        [[words[0].words[i] for i in row] for row in sources],
        [[words[1].words[i] for i in row] for row in targets],
    )
    np.testing.assert_allclose([row.log_probs for row in found], wanted, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["shared"], indirect=True)
def test_ctranslate2_hypothesis_of_both_beam_searches_has_one_score(pair):
    model, served, words, lines = pair
    rows = [[*words[0].encode(line), SOURCE.end_id] for line in lines if line]
    source = keras.utils.pad_sequences(rows, padding="post")
    options = {"num_beams": 5, "num_results": 5, "length_penalty": 1.0}
    state = model.encode(source, max_length=9)
    with eagerly():
        found = tfattn.BeamSearch(**options)(model.step, state, len(source), 9)
    ours = {
        (i, tuple(words[1].words[j] for j in tokens if j)): score
        for i, result in enumerate(zip(*map(numpy, found[:2]), strict=True))
        for tokens, score in zip(*result, strict=True)
    }
    theirs = served.translator.translate_batch(
        [[words[0].words[j] for j in row[:-1]] for row in rows],
        beam_size=5,
        num_hypotheses=5,
        length_penalty=1.0,
        min_decoding_length=0,
        max_decoding_length=9,
        return_scores=True,
        return_end_token=True,
    )
    both = [
        (ours[i, tuple(tokens)], score)
        for i, result in enumerate(theirs)
        for tokens, score in zip(result.hypotheses, result.scores, strict=True)
        if (i, tuple(tokens)) in ours
    ]
    assert len(both) > 5
    np.testing.assert_allclose(*zip(*both, strict=True), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["post-norm"], indirect=True)
def test_ctranslate2_beams_do_not_depend_on_other_sentences(pair):
    """Each sentence is searched up to its own limit, whatever the longest of the call has."""
    served = pair[1]
    alone = [served.translate([sentence], num_beams=4)[0] for sentence in SENTENCES]
    assert served.translate(SENTENCES, num_beams=4) == alone


@pytest.fixture(scope="module")
def plain():
    """Our smallest model that goes."""
    return built(**GOES["post-norm"])


@pytest.fixture(scope="module")
def written(plain, engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "new"
    to_ctranslate2(plain, WORDS, folder)
    return folder


@pytest.mark.parametrize("quantization", ["int8", "int16", "float16", "float32"])
def test_to_ctranslate2_quantized_writes_fewer_bytes(quantization, plain, written, tmp_path):
    to_ctranslate2(plain, WORDS, tmp_path / "new", quantization)
    found = CTranslate2(tmp_path / "new").translate(SENTENCES)
    assert [bool(line) for line in found] == [bool(line) for line in SENTENCES]
    in_matrices = sum(np.prod(w.shape) for w in plain.weights if len(w.shape) > 1)
    spared = {"int8": 3, "int16": 2, "float16": 2, "float32": 0}[quantization]
    before, after = ((f / "model.bin").stat().st_size for f in (written, tmp_path / "new"))
    assert before - after > 0.5 * spared * in_matrices if spared else before == after


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_float16"])
def test_to_ctranslate2_of_narrow_weights_writes_float32(dtype, engine, tmp_path):
    sizes = {"num_heads": 3, "hidden_dim": 7, "num_layers": 1}
    narrow = built(**sizes, dtype=dtype)
    wide = built(**sizes)
    wide.set_weights([numpy(variable).astype("float32") for variable in narrow.weights])
    contents = []
    for name, model in (("narrow", narrow), ("wide", wide)):
        to_ctranslate2(model, WORDS, tmp_path / name, max_length=11)
        contents.append((tmp_path / name / "model.bin").read_bytes())
    assert contents[0] == contents[1]


def by_commas(sentence):
    return sentence.split(",")


def test_ctranslate2_needs_a_tokenizer_of_ones_own_again(written, plain, engine, tmp_path):
    own = data.Vocabulary([f"s{i}" for i in range(13)], tokenizer=by_commas)
    to_ctranslate2(plain, [own, TARGET], tmp_path / "new")
    said = r"must be loaded with the vocabulary's own tokenizer, .*commas.*source\.vocabulary"
    with pytest.raises(ValueError, match=said):
        CTranslate2(tmp_path / "new")
    with pytest.raises(ValueError, match="`tokenizer` must be omitted"):
        CTranslate2(tmp_path / "new", [by_commas, by_commas])
    served = CTranslate2(tmp_path / "new", [by_commas, None])
    [found] = served.translate(["s1,s2,s3"])
    assert [found] == CTranslate2(written).translate(["s1 s2 s3"]) != served.translate(["s1 s2 s3"])


@keras.saving.register_keras_serializable("tests.ctranslate2")
class OwnAttention(tfattn.MultiHeadAttention):
    """Might compute anything."""


CANNOT = [
    ("score", {"block": parted(attention(score=tfattn.CosineScore()))}),
    ("normalizer", {"block": parted(attention(normalizer=tfattn.AttentionSinks()))}),
    (
        "num_key_value_heads",
        {"block": parted(tfattn.MultiHeadAttention(4, 3, num_key_value_heads=2))},
    ),
    ("key_dim", {"block": parted(tfattn.MultiHeadAttention(3, 5))}),
    ("value_dim", {"block": parted(attention(value_dim=5))}),
    ("use_gate", {"block": parted(attention(use_gate=True))}),
    ("sliding_window", {"block": parted(attention(sliding_window=3))}),
    ("activation", {"block": parted(tfattn.PositionwiseFeedForward(7, activation="selu"))}),
    ("norm", {"block": block(norm=keras.layers.LayerNormalization(center=False))}),
    ("positions", {"block": parted(attention(positions=ROTARY))}),  # beside those that are added
    ("positions", within(tfattn.AlibiPositions())),
    ("positions", within(tfattn.RelativePositionBias())),
    ("scaling", within(tfattn.RotaryPositions(scaling=scalings.linear(2.0)))),
]
OF_OTHER_CLASSES = [
    ("attention", {"block": parted(OwnAttention(3, 4))}),
    ("feed_forward", {"block": parted(keras.layers.Dense(12))}),
    ("norm", {"block": block(norm=keras.layers.UnitNormalization())}),
    ("positions", {"block": block(), "positions": keras.layers.Rescaling(2.0)}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "options"),
    [
        *[(f"`{name}` cannot be converted", options) for name, options in CANNOT],
        *[(f"`{name}` must be one of", options) for name, options in OF_OTHER_CLASSES],
    ],
)
def test_to_ctranslate2_names_what_the_engine_lacks(said, options, tmp_path):
    with pytest.raises(ValueError, match=f"to_ctranslate2: {said}"):
        to_ctranslate2(empty(num_layers=1, **options), WORDS, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_to_ctranslate2_refuses_a_model_unbuilt_or_quantized(tmp_path):
    with pytest.raises(ValueError, match="`model` must be built"):
        model = tfattn.Transformer(17, 19, num_layers=1, width=12, block=block())
        to_ctranslate2(model, WORDS, tmp_path / "new")
    model = empty(block=block())
    model.encoder.blocks[0].feed_forward.inner.quantize("int8")
    with refused("quantize"):
        to_ctranslate2(model, WORDS, tmp_path / "new")


def test_to_ctranslate2_refuses_vocabularies_that_do_not_fit(plain, tmp_path):
    with pytest.raises(ValueError, match=r"`vocabularies\[0\]` must have 17 entries"):
        to_ctranslate2(plain, [TARGET, TARGET], tmp_path / "new")
    other = data.Vocabulary([f"t{i}" for i in range(15)])
    other.words = ("<pad>", "<unk>", "<s>", "</s>", *other.words[4:])
    with pytest.raises(ValueError, match="must have equal words for unknown, begin and end"):
        to_ctranslate2(plain, [SOURCE, other], tmp_path / "new")


def test_to_ctranslate2_leaves_a_folder_with_files_alone(plain, written):
    before = {path: path.read_bytes() for path in written.iterdir()}
    with pytest.raises(ValueError, match="`folder` must be new, or an empty folder"):
        to_ctranslate2(plain, WORDS, written)
    assert {path: path.read_bytes() for path in written.iterdir()} == before


def test_ctranslate2_of_a_missing_folder_is_refused(engine, tmp_path):
    with pytest.raises(FileNotFoundError):
        CTranslate2(tmp_path / "none")


def test_ctranslate2_refuses_invalid_arguments_of_translate(written):
    served = CTranslate2(written)
    assert served.translate([]) == [] and served.translate(["", ""]) == ["", ""]
    with pytest.raises(ValueError, match="`sentences` must be a collection of strings"):
        served.translate("s1 s2")
    for name, value in (
        *(("num_beams", 1.5), ("length_penalty", -1), ("batch_size", 0)),
        *(("max_length", 2.7), ("max_length", 0), ("max_length", 1025)),
    ):
        with pytest.raises(ValueError, match=rf"^CTranslate2.translate: `{name}` must .*={value}$"):
            served.translate(["s1 s2"], **{name: value})


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["learned positions, gelu"], indirect=True)
def test_ctranslate2_refuses_what_is_beyond_the_positions(pair):
    """As `tfattn.translate` refuses it, and not cut in silence."""
    model, served, *_ = pair
    longest = " ".join(["s1"] * 22)  # and its end
    wanted = translated(model, [longest], WORDS, max_length=23)
    assert served.translate([longest]) == served.translate([longest], max_length=23) == wanted
    with pytest.raises(ValueError, match=r"`sentences\[1\]` must have at most 22 tokens"):
        served.translate(["s1", f"{longest} s2"])
    with pytest.raises(ValueError):
        tfattn.translate(model, ["s1"], SOURCE, TARGET, max_length=24)
