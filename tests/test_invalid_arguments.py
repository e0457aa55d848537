"""Every public callable refuses invalid arguments by a `ValueError` in the design's form, except
values that the documentation allows.

A row of `TABLE` is a callable and the kinds of its arguments, by default those in `KINDS`. A kind
has a valid argument, the names of the values that are allowed, and the names of the values that the
test tries: for a check that many callables share, a few. A public callable without a row gets one
from the names of its arguments: a new name needs a kind here.
"""

import functools
import inspect
import os
import pathlib
import re
import tempfile
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.tensors import BACKEND, numpy, tf
from tfattn import _checks, convert, data, interpret, kernels, masks, normalizers, plot
from tfattn.core import scores
from tfattn.kernel_regression import KernelRegression

B, T, D, H, V = 2, 3, 4, 5, 11

INVALID: dict[str, Any] = {
    "None": None,
    "text": "abc",
    "NaN": float("nan"),
    "inf": float("inf"),
    "-1": -1,
    "0": 0,
    "1.5": 1.5,
    "1j": 1j,
    "True": True,
    "[]": [],
    "{}": {},
    "object": object(),
    "function": lambda: None,
    "texts": ["abc", "def"],
    "bytes": b"abc",
    "a class": dict,
    "array of rank 1": np.zeros(1, "float32"),
    "array of rank 5": np.zeros((1,) * 5, "float32"),
    "array of text": np.array([["abc"]]),
    "ragged list": [[1.0], [2.0, 3.0]],
}

# Arrays with one fault, made from a valid array.
MALFORMED: dict[str, Callable[[np.ndarray], Any]] = {
    "text in its shape": lambda x: np.full(x.shape, "abc"),
    "tensor of text": lambda x: (tf.fill if tf else np.full)(x.shape, "abc"),
    "objects in its shape": lambda x: np.full(x.shape, None),
    "booleans in its shape": lambda x: np.ones(x.shape, bool),
    "complex": lambda x: x.astype("complex64"),
    "ragged": lambda x: tf.RaggedTensor.from_tensor(x) if tf and x.ndim > 1 else None,
    "sparse": lambda x: tf.sparse.from_dense(x) if tf else None,
    "an axis more": lambda x: x[None],
    "an axis less": lambda x: x[0],
    "empty batch": lambda x: x[:0],
    "other batch": lambda x: np.concatenate([x, x[:1]]),
    "width 0": lambda x: x[..., :0],
    "other width": lambda x: np.concatenate([x, x], -1),
}

# Names of the values that are tried.
ALL = frozenset({*INVALID, *MALFORMED})
OF_SCALARS = frozenset({"None", "text", "-1", "0", "1.5"})
OF_TEXT = frozenset({"None", "text", "1.5", "[]", "bytes", "ragged list"})
OF_OBJECTS = frozenset({"None", "text", "-1", "[]", "a class"})
OF_TENSORS = frozenset(
    {"None", "text", "complex", "an axis less", "other batch", "other width", "width 0"}
)

# Names of values that some arguments allow.
FUNCTIONS = {"function", "a class"}
EMPTY = {"[]", "{}"}
NUMBERS = {"NaN", "inf", "-1", "0", "1.5"}
ARRAYS = {"array of rank 1", "array of rank 5", "array of text"}
OF_ANY_RANK = {"array of rank 1", "array of rank 5", "an axis more", "an axis less", "width 0"}
ALONE = {"empty batch", "other batch"}  # if no other argument has a batch
WIDE = {"other width"}  # if widths may differ
ANY_MASK = {*ALONE, *WIDE, "an axis more", "an axis less", "width 0"}


class Kind(NamedTuple):
    valid: Any
    allowed: frozenset = frozenset()
    tried: frozenset = ALL

    def of(self, valid, *allowed):
        """The kind with another valid argument, and further allowed values."""
        return self._replace(valid=valid, allowed=self.allowed | {*allowed})

    @property
    def optional(self):
        return self.of(self.valid, "None")


def kind(valid, *allowed, tried=ALL):
    return Kind(valid, frozenset(allowed), tried)


class New(NamedTuple):
    """A valid argument that is created for each call."""

    make: Callable


class Row(NamedTuple):
    name: str
    call: Callable
    arguments: dict[str, Kind]
    whole: bool = False  # try all invalid values
    alone: bool = False  # skip the call with valid arguments

    @property
    def valid(self):
        return {name: kind.valid for name, kind in self.arguments.items()}

    @property
    def allowed(self):
        return {name: kind.allowed for name, kind in self.arguments.items()}


def step(tokens, position, state):
    return ops.zeros((ops.shape(tokens)[0], V)), state


FLOATS = np.linspace(0.0, 1.0, B * T * D, dtype="float32").reshape(B, T, D)
SQUARE = np.linspace(0.0, 1.0, B * T * T, dtype="float32").reshape(B, T, T)
IDS = np.array([[2, 5, 3], [2, 7, 0]], "int32")
LENGTHS = np.array([3, 2], "int32")
PADDING = np.array([[True, True, True], [True, True, False]])
PAIRS = [("a b", "c d"), ("b", "d")]
WORDS = data.Vocabulary(["a", "b", "c", "d"])
SENTENCES = ["a b", "b a"]
WEIGHTS = np.full((B, H, T, T), 1 / T, "float32")
TWO = [1.0, 2.0]
SMALL = {"vocabulary_size": V, "num_layers": 1, "width": 4, "num_heads": 2, "hidden_dim": 3}
FOLDER = tempfile.mkdtemp()
PATH = f"{FOLDER}/lines"
pathlib.Path(PATH).write_text("a b\nb\n", encoding="utf-8")
PARTS = data.SubwordVocabulary.from_sentences(["a b", "b a"] * 3, 9)
WORDS_PATH, PARTS_PATH = f"{FOLDER}/words.json", f"{FOLDER}/parts"
WORDS.save(WORDS_PATH)
PARTS.save(PARTS_PATH)
MARIAN = data.MarianVocabulary(pathlib.Path(PARTS_PATH).read_bytes(), list("abcde"), 1, 2, 3)
MARIAN_PATH = f"{FOLDER}/marian"
MARIAN.save(MARIAN_PATH)

SIZE = kind(2, tried=OF_SCALARS)
ONE = SIZE.of(1)
COUNT = kind(1, "0", tried=OF_SCALARS)
ANY_INT = COUNT.of(3, "-1")
POSITIVE = kind(2.0, "1.5", tried=OF_SCALARS)
NON_NEGATIVE = kind(1.0, "0", "1.5", tried=OF_SCALARS)
RATE = kind(0.1, "0", tried=OF_SCALARS)
SHARE = kind(0.5, tried=OF_SCALARS)
FLAG = kind(False, "True", tried=OF_SCALARS)
ASKED = kind(True, "True", "0", tried=OF_SCALARS)  # a flag of a call, which allows 0 and 1
SEED = kind(3, "None", "0", tried=OF_SCALARS)
TEXT = kind("text", "text", tried=OF_TEXT)
NAME = kind("gaussian", tried=OF_TEXT)
FILE = kind(PATH, tried=OF_TEXT)
TEXTS = kind(SENTENCES, "texts", tried=OF_TEXT)
MAYBE_NO_TEXTS = TEXTS.of(SENTENCES, *EMPTY)
FREE = kind(None, *ALL)  # of no check of the package
OBJECT = kind(None, tried=OF_OBJECTS)
PART = OBJECT.optional
VOCABULARY = OBJECT.of(WORDS)
PAIRS_OF_TEXT = kind(PAIRS, tried=OF_TEXT)
KERNEL = kind("gaussian", *FUNCTIONS)
# Keras's own errors.
ACTIVATION = kind("relu", tried=frozenset())
INITIALIZER = kind("zeros", tried=frozenset())
OF_KERAS = kind(None, tried=frozenset())

TOKENS = kind(FLOATS, tried=OF_TENSORS)
IDS_OF_ROWS = kind(IDS, *WIDE, "width 0", tried=OF_TENSORS)
# Masks of 0 and 1 are allowed, and so is one mask for each row of the batch.
MASK = kind(PADDING, "None", tried=OF_TENSORS)
SQUARE_MASK = MASK.of(PADDING[:, None] & PADDING[..., None], "an axis less")
ONE_ROW_MASK = MASK.of(PADDING[:, None], "an axis less")
BIAS = kind(SQUARE, "None", "an axis less", tried=OF_TENSORS)

LABELS = kind(list("abc"), tried=OF_TEXT)
UNTRIED = kind(None, tried=frozenset())  # what Keras, or the first use, refuses

MESH = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), devices=["cpu:0"])

KINDS = {
    argument: of_them
    for of_them, arguments in (
        (SIZE, "batch_size categories columns every hidden_dim k key_dim"),
        (SIZE, "length_multiple min_count num_beams num_heads num_keys num_pairs num_queries"),
        (SIZE, "num_random num_shards original_length replicas size"),
        (SIZE, "source_vocabulary_size steps units vocabulary_size warmup_steps"),
        (SIZE, "width window"),
        (ONE, "count num_layers num_results row_multiple"),
        (SIZE.of(3), "max_length"),
        (SIZE.of(8), "num_buckets"),
        (SIZE.of(64), "tokens_per_batch"),
        (SIZE.of(128), "max_distance"),
        (SIZE.of(9).optional, "max_size"),
        (SIZE.optional, "num_key_value_heads output_dim rotary_dim sample sliding_window"),
        (SIZE.optional, "target_vocabulary_size top_k value_dim"),
        (COUNT, "begin_id epoch length start"),
        (COUNT.of(0), "degree padding_id row shard"),
        (COUNT.of(3), "end_id"),
        (POSITIVE, "bandwidth base cap epsilon factor input_scale low_freq_factor"),
        (POSITIVE, "max_wavelength peak penalty temperature"),
        (POSITIVE.of(4.0), "high_freq_factor"),
        (POSITIVE.optional, "scale"),
        (NON_NEGATIVE, "length_penalty strength weight"),
        (NON_NEGATIVE.of(0.05), "threshold"),
        (RATE, "attention_dropout dropout label_smoothing rate residual"),
        (SHARE, "fraction level mass share"),
        (SHARE.optional, "top_p"),
        (FLAG, "clean_up early_stopping scored"),
        (FLAG, "bidirectional box_sums interleaved jit_compile leave_one_out"),
        (FLAG, "lowercase norm_first pointed progress return_state"),
        (FLAG, "share_embeddings shard_vocabulary smooth tie_embeddings"),
        (FLAG, "trainable_bandwidth verbose"),
        (FLAG, "trainable_temperature use_bias use_gate"),
        (FLAG.optional, "flash_attention"),
        (ASKED, "return_attention_scores return_log_sum_exp return_weights use_causal_mask"),
        (ASKED.optional, "training"),
        (SEED, "seed shuffle_seed"),
        (TEXT, "bar_label folder monitor sentence source target x_label y_label"),
        (TEXT.of(f"{PATH}.npz"), "filepath"),
        (TEXT.optional, "title"),
        (NAME.of("dense", "None"), "path"),
        (NAME.of("NFC", "None"), "normalization"),
        (NAME.of("sum", "None"), "reduction"),
        (NAME.of("robust"), "method"),
        (NAME.of("each"), "metric"),
        (NAME.of("en"), "language"),
        (NAME.of("model"), "axis"),
        (NAME.of("nearest"), "empty"),
        (NAME.of("point"), "leave_out"),
        (FILE, "source_path target_path"),
        (MAYBE_NO_TEXTS, "examples sentences"),
        (MAYBE_NO_TEXTS.of(["a", "b"]), "words"),
        (TEXTS, "hypotheses references"),
        (MAYBE_NO_TEXTS.of(["<2fr>"]), "symbols"),
        (LABELS.optional, "column_labels row_labels"),
        (PAIRS_OF_TEXT, "pairs"),
        (
            PART,
            "attention ax block embedding epoch_counter feed_forward initial_state norm",
        ),
        (PART, "normalizer positions scaling score target_in tokenizer"),
        (OBJECT.of(keras.layers.GRUCell), "cell"),
        (OBJECT.of(New(lambda: transformer())), "model"),
        (OBJECT.of(New(lambda: [transformer()])), "models"),
        (UNTRIED.of(New(lambda: data.token_batches(PAIRS, WORDS, WORDS, 16))), "batches"),
        (VOCABULARY, "source_vocabulary target_vocabulary vocabulary"),
        (KERNEL, "kernel"),
        (ACTIVATION, "activation"),
        (INITIALIZER, "bias_initializer initializer kernel_initializer query_initializer"),
        (INITIALIZER.of(None), "output_kernel_initializer"),
        (OF_KERAS, "bias_constraint bias_regularizer kernel_constraint kernel_regularizer"),
        (kind(step, *FUNCTIONS, tried=OF_OBJECTS), "step"),
        (kind(np.tri, *FUNCTIONS, tried=OF_OBJECTS), "function"),
        (FREE.of(np.sum), "measure"),
        (FREE.of(lambda output: output[:, 0, 0]), "objective"),
        (kind(lambda model, sources: sources, *FUNCTIONS), "translate"),
        (kind(min), "better"),
        (kind(tfattn.TransformerSchedule(4)), "schedule"),
        (kind(MESH), "device_mesh"),
        (kind({}, "{}", tried=OF_TEXT), "heads"),
        (kind({"loss": [1.0, 0.5]}, "array of rank 1"), "history"),
        (kind((), *ALL), "state"),
        (kind((), "[]"), "parameters rules"),
        (kind([], "[]"), "callbacks"),
        (kind([0], *EMPTY), "categorical"),
        (kind([3]), "tokens"),
        (kind(SENTENCES, "texts", "ragged list"), "sources"),
        (kind(TWO), "queries x y"),
        (kind(TWO, "{}"), "predictions"),
        (kind(4, "None"), "output_shape"),
        (kind(1, "None"), "attention_axes"),
        (kind(None, "None"), "loss names quantization"),
        (kind(None, "None", "{}"), "bands"),
        (kind(None, "None", *ARRAYS), "titles"),
        (kind(None, "None", *NUMBERS), "best"),
        (kind(SQUARE[0], "booleans in its shape", "an axis more"), "matrices"),
        (kind(FLOATS[0], *ANY_MASK - {"width 0"}, "array of rank 1", "{}"), "importance"),
        (kind(FLOATS[0] > 0, "None", tried=OF_TENSORS), "candidates"),
        (kind([SQUARE[..., 0], SQUARE[..., 0]]), "log_sum_exps"),
        (kind(np.ones(B), "None", "booleans in its shape"), "sample_weight"),
        (kind(IDS, *WIDE, "width 0"), "query_segments"),
        (kind(IDS, "None", *WIDE, "width 0"), "key_segments"),
        (kind(IDS, *ALONE, "width 0", tried=OF_TENSORS), "prompt"),
        (kind(1, "0"), "start_index"),
        (TOKENS, "query"),
        (TOKENS.of(FLOATS, *WIDE), "inputs memory value"),
        (TOKENS.optional, "key outputs"),
        (MASK, "inputs_mask key_mask mask memory_mask query_mask value_mask"),
        (MASK.of(LENGTHS), "valid_lens"),
        (SQUARE_MASK, "attention_mask memory_attention_mask"),
        (BIAS, "bias"),
        (IDS_OF_ROWS, "ids"),
    )
    for argument in arguments.split()
}
STACK = {"num_heads": SIZE.optional, "hidden_dim": SIZE.optional, "dropout": RATE.optional}
ANY_WIDTH = {"query": TOKENS.of(FLOATS, *WIDE), "key": TOKENS.optional.of(FLOATS, *WIDE)}
WIDTHS_OF_SCORES = dict.fromkeys(("query", "key"), ANY_WIDTH["query"])
# Points of one column, to fit and to ask at.
COLUMN = kind(FLOATS[:, 0], "booleans in its shape", "an axis less", "other width")
POINTS = kind(FLOATS[:, 0], *ALONE, "[]", "booleans in its shape")
OF_SCORES = {
    "scores": kind(SQUARE, *OF_ANY_RANK, "empty batch"),
    "visible": kind(PADDING[:, None], "None", "an axis less"),
}
TOKENS_OF_ANY_RANK = TOKENS.of(FLOATS, *ANY_MASK - {"width 0"}, "array of rank 5")
ENCODED = {"max_length": SIZE.of(4).optional}
BATCHES = {"max_length": SIZE.of(5).optional}
SHORT_SEARCH = {"max_length": SIZE.of(3).optional}
GREEDY = OBJECT.of(tfattn.GreedySearch()).optional


def kinds_of(call, given):
    """The kind of each argument of `call`, except arguments given as None."""
    various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [
        name
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.kind not in various and name not in ("self", "name", "dtype", "who")
    ]
    lacking = [name for name in names if name not in given and name not in KINDS]
    assert not lacking, f"{call.__qualname__}: add {lacking} to KINDS, or a row to TABLE"
    kinds = {name: given[name] if name in given else KINDS[name] for name in names}
    return {name: kind for name, kind in {**kinds, **given}.items() if kind is not None}


def named(name):
    """What `tfattn.NAME` is."""
    return functools.reduce(getattr, name.split("."), tfattn)


def row(name, call=None, /, **given):
    """A row of the callable `tfattn.NAME`, or of another with all its kinds given."""
    if call is None:
        call = named(name)
        given = kinds_of(call, given)
    return Row(name, call, given)


def whole(name, /, **given):
    return row(name, **given)._replace(whole=True)


def alone(name, /, **given):
    return row(name, **given)._replace(alone=True)


# Constructor arguments of layers for the rows of their calls.
SIZES = {
    **dict.fromkeys(("AdditiveAttention", "AdditiveScore"), {"units": 3}),
    "SoftCapScore": {"cap": 2.0},
    "MultiHeadAttention": {"num_heads": H, "key_dim": 2},
    "LearnedPositionalEncoding": {"max_length": 99},
    **dict.fromkeys(("PositionwiseFeedForward", "GatedFeedForward"), {"hidden_dim": 3}),
    "TransformerEncoderBlock": {"num_heads": 4, "hidden_dim": 3},
    "TransformerDecoderBlock": {"num_heads": 4, "hidden_dim": 3},
    "RecurrentEncoder": {"vocabulary_size": V, "width": 3, "units": 3},
    "RecurrentDecoder": {"vocabulary_size": V, "width": 3, "units": 3},
    **dict.fromkeys(("TransformerEncoder", "TransformerDecoder"), SMALL),
}


def called(name, *first, make=None, **given):
    """A row for a layer's call, which passes the tensors in `first` by position."""
    cls = getattr(tfattn, name)

    def call(**arguments):
        layer = make() if make else cls(**SIZES.get(name, {}))
        return layer(*[arguments.pop(each) for each in first], **arguments)

    return Row(f"{name}()", call, kinds_of(cls.call, given))


def built(layer):
    layer.build(FLOATS.shape, FLOATS.shape)
    return layer


@functools.cache
def built_heads():
    return built(tfattn.MultiHeadAttention(H, 2))


@functools.cache
def transformer():
    sizes = {name: size for name, size in SMALL.items() if name != "vocabulary_size"}
    return tfattn.Transformer(len(WORDS), **sizes)


def built_transformer():
    model = transformer()
    model.build_for_any()
    return model


@functools.cache
def seq2seq():
    return tfattn.BahdanauSeq2Seq(len(WORDS), width=3, units=3)


@functools.cache
def language_model():
    return tfattn.CausalLM(**SMALL)


@functools.cache
def stepper():
    model = language_model()
    model.build_for_any()
    return tfattn.decoding.Stepper(model)


@functools.cache
def smooth():
    return KernelRegression(bandwidth=0.5).fit(FLOATS[:, 0], FLOATS[:, 0])


# For a folder with a complete model.
SERVED = {"model": kind(New(built_transformer)), "vocabularies": OBJECT.of((WORDS, WORDS))}

TABLE = [
    # Attention.
    whole("Attention"),
    row("MultiHeadAttention", activity_regularizer=OF_KERAS),
    called("DotProductAttention", "query", "value"),
    called("AdditiveAttention", **ANY_WIDTH),
    called("BilinearAttention", "query", "value", **ANY_WIDTH),
    called("NadarayaWatson", "query", "value"),
    called("Attention"),
    called("MultiHeadAttention", "query", "value", **ANY_WIDTH),
    called("MultiHeadAttention", "query", "value", make=built_heads)._replace(
        name="MultiHeadAttention() built", whole=True
    ),
    # Functions of the engine.
    whole(
        "attend",
        value=TOKENS.of(FLOATS, *WIDE, "width 0"),
        score=kind(scores.dot_product, *FUNCTIONS),
        mask=SQUARE_MASK,
    ),
    whole("masked_softmax", scores=TOKENS.of(SQUARE), mask=ONE_ROW_MASK),
    row("merge_attentions", outputs=kind([FLOATS, FLOATS])),
    row(
        "attention_weights",
        lambda model: tfattn.attention_weights(model, FLOATS, FLOATS),
        model=kind(New(tfattn.DotProductAttention)),
    ),
    row("normalizers.sparsemax", **OF_SCORES),
    row("normalizers.top_k()", normalizers.top_k(2), **OF_SCORES),
    *[
        row(f"kernels.{name}", squared=kind(SQUARE, *ALONE, *NUMBERS, *OF_ANY_RANK, *WIDE, "[]"))
        for name in kernels.names()
    ],
    row("kernels.get"),
    # Masks and biases.
    row("masks.padding", valid_lens=kind(LENGTHS, *ANY_MASK - {"an axis less"})),
    row("masks.explicit", mask=kind(PADDING[:, None], *ANY_MASK)),
    row("masks.positions_in_segments", ids=kind(IDS, *ALONE, *WIDE, "width 0")),
    row("biases.explicit", bias=kind(SQUARE, *ANY_MASK)),
    row("biases.relative", table=kind(FLOATS[0], *ALONE, *WIDE)),
    # Scores and positions.
    *[
        called(f"{name}Score", "query", "key", query=TOKENS, key=TOKENS)
        for name in ("DotProduct", "NormalizedDotProduct", "SoftCap", "Cosine", "Kernel")
    ],
    called("AdditiveScore", "query", "key", **WIDTHS_OF_SCORES),
    called("BilinearScore", "query", "key", **WIDTHS_OF_SCORES),
    row("AttentionSinks"),
    row("AttentionPooling", num_queries=SIZE.optional),
    called("AttentionPooling", make=lambda: tfattn.AttentionPooling(3), key=ANY_WIDTH["key"]),
    *[
        called(f"{name}PositionalEncoding", "inputs", positions=kind(IDS, "None", "an axis less"))
        for name in ("Sinusoidal", "Learned")
    ],
    # Blocks and recurrent layers.
    whole("AddNorm"),
    called("AddNorm", "inputs", inputs=TOKENS),
    called("PositionwiseFeedForward", "inputs", inputs=TOKENS_OF_ANY_RANK),
    called("GatedFeedForward", "inputs", inputs=TOKENS_OF_ANY_RANK),
    called("TransformerEncoderBlock", "inputs"),
    called("TransformerDecoderBlock", "inputs"),
    called("RecurrentEncoder", "ids", ids=TOKENS.of(IDS, *ALONE, *WIDE), return_state=ASKED),
    called("RecurrentDecoder", "ids", ids=TOKENS.of(IDS, *WIDE), keys=None, return_state=ASKED),
    # Models.
    *[
        row(name, **STACK)
        for name in ("TransformerEncoder", "TransformerDecoder", "Transformer", "CausalLM")
    ],
    called("TransformerEncoder", "ids", ids=IDS_OF_ROWS.of(IDS, *ALONE)),
    called("TransformerDecoder", "ids", memory=TOKENS.optional.of(FLOATS, *WIDE)),
    called("CausalLM", "ids", make=language_model, ids=IDS_OF_ROWS.of(IDS, *ALONE)),
    row(
        "CausalLM.encode",
        lambda **a: language_model().encode(**a),
        prompt=KINDS["prompt"],
        **ENCODED,
    ),
    *[
        one
        for name, model in (("Transformer", transformer), ("BahdanauSeq2Seq", seq2seq))
        for one in (
            called(name, "inputs", make=model, inputs=kind((IDS, IDS), tried=OF_OBJECTS)),
            row(f"{name}() source", lambda inputs, m=model: m()((inputs, IDS)), inputs=IDS_OF_ROWS),
            row(f"{name}() target", lambda inputs, m=model: m()((IDS, inputs)), inputs=IDS_OF_ROWS),
            row(
                f"{name}.encode",
                lambda model=model, **a: model().encode(**a),
                source=IDS_OF_ROWS.of(IDS, *ALONE),
                **ENCODED,
            ),
        )
    ],
    # Kernel regression without a layer.
    *[
        row(
            f"kernel_regression.KernelRegression.{method}",
            lambda x, method=method: getattr(smooth(), method)(x),
            x=POINTS,
        )
        for method in ("predict", "derivative", "weights", "effective_neighbors", "variance")
    ],
    Row(
        "kernel_regression.KernelRegression",
        lambda **a: KernelRegression(**a).fit(FLOATS[0], FLOATS[0]),
        kinds_of(KernelRegression, {"kernel": NAME, "bandwidth": kind(None, "None", "1.5")}),
    ),
    Row(
        "kernel_regression.KernelRegression.fit",
        lambda **a: KernelRegression(bandwidth=0.5).fit(**a),
        kinds_of(KernelRegression.fit, {"x": COLUMN, "y": COLUMN, "start": None}),
    ),
    row(
        "kernel_regression.KernelRegression.fit from a start",
        lambda start: KernelRegression().fit(FLOATS[0], FLOATS[0], start=start),
        start=kind(1.0, "None", "1.5", "True"),
    ),
    Row(
        "kernel_regression.KernelRegression.bands",
        lambda **a: smooth().bands(**a),
        kinds_of(KernelRegression.bands, {"x": POINTS}),
    ),
    row("kernel_regression.kernels.get", kernel=NAME),
    # Decoding.
    *[
        Row(f"{type(search).__name__}()", search, kinds_of(search, {}))
        for search in (
            *(tfattn.GreedySearch(), tfattn.Sampling(), tfattn.BeamSearch(2)),
            tfattn.decoding.PooledBeamSearch(2),
        )
    ],
    row("translate", search=GREEDY, **SHORT_SEARCH),
    row("decoding.translate_n_best", search=OBJECT.of(tfattn.BeamSearch(2)), **SHORT_SEARCH),
    row("decoding.log_probabilities", pairs=PAIRS_OF_TEXT.of(PAIRS, "[]")),
    row("decoding.Ensemble"),
    row("decoding.Stepper", model=OBJECT.of(New(lambda: stepper().model))),
    row(
        "decoding.Stepper.encode",
        lambda **a: stepper().encode(**a),
        source=KINDS["prompt"],
        max_length=SIZE.of(4),
    ),
    row("translate_stream", sentence=TEXT.of("a bird"), search=GREEDY, **SHORT_SEARCH),
    # Data.
    row("data.toy_translation", seed=ANY_INT),
    row("data.split_pairs", seed=ANY_INT),
    row("data.Vocabulary.from_sentences"),
    row("data.Vocabulary.load", path=FILE.of(WORDS_PATH)),
    row("data.load_vocabulary", path=FILE.of(WORDS_PATH)),
    row("data.SubwordVocabulary", model=kind(pathlib.Path(PARTS_PATH).read_bytes())),
    row("data.SubwordVocabulary.from_sentences", sentences=TEXTS, size=SIZE.of(99)),
    row("data.SubwordVocabulary.load", path=FILE.of(PARTS_PATH)),
    row(
        "data.MarianVocabulary",
        model=kind(pathlib.Path(PARTS_PATH).read_bytes()),
        words=TEXTS.of(list("abcde")),
        unknown_id=ONE,
        begin_id=ONE.of(2),
        end_id=ONE.of(3),
    ),
    row("data.MarianVocabulary.load", path=FILE.of(MARIAN_PATH)),
    *[
        one
        for name, made_of in (
            *(("data.Vocabulary", WORDS), ("data.SubwordVocabulary", PARTS)),
            ("data.MarianVocabulary", MARIAN),
        )
        for one in (
            row(f"{name}.encode", made_of.encode, sentence=TEXT.of("a b")),
            row(f"{name}.decode", made_of.decode, ids=kind([2, 4], *EMPTY)),
            row(f"{name}.save", made_of.save, path=TEXT.of(f"{PATH}.saved")),
        )
    ],
    row("data.Moses", language=TEXT.of("en")),
    *[
        one
        for name, tokenizer in (("Characters", data.Characters()), ("Moses", data.Moses("en")))
        for one in (
            row(f"data.{name}()", tokenizer, sentence=TEXT.of("a b")),
            row(f"data.{name}.join", tokenizer.join, words=MAYBE_NO_TEXTS.of(["a"])),
        )
    ],
    row("data.SubwordDropout", vocabulary=OBJECT.of(PARTS)),
    row(
        "data.SubwordDropout.draw",
        data.SubwordDropout(PARTS).draw,
        sentences=MAYBE_NO_TEXTS,
        seed=COUNT,
    ),
    row("data.translation_batches", **BATCHES),
    row("data.token_batches", **BATCHES),
    # Weights from elsewhere.
    *[
        row(f"convert.{name}", layer=OBJECT.of(New(make)))
        for name, make in (
            ("from_keras", lambda: built(keras.layers.MultiHeadAttention(2, 3))),
            ("to_keras", lambda: built(tfattn.MultiHeadAttention(2, 3))),
            ("to_torch", lambda: built(tfattn.MultiHeadAttention(2, 2))),
        )
    ],
    row(
        "convert.from_torch",
        state=OBJECT.of(New(lambda: convert.to_torch(built(tfattn.MultiHeadAttention(2, 2))))),
        **dict.fromkeys(("norm_first", "activation", "epsilon"), FREE),  # of blocks
    ),
    alone("convert.to_marian", model=kind({})),
    alone("convert.from_marian", state=kind({}), config=kind({})),
    alone("convert.CTranslate2", folder=OBJECT.of(FOLDER, "text"), tokenizers=OBJECT),
    alone("convert.load_marian"),
    alone("convert.marian_search"),
    alone("convert.to_ctranslate2", **SERVED, quantization=FREE, max_length=FREE),
    alone("convert.to_onnx", **SERVED),
    alone("convert.to_litert", model=SERVED["model"], path=TEXT.of("model.tflite")),
    row(
        "convert.to_page",
        model=SERVED["model"],
        path=TEXT.of(f"{PATH}.html"),
        title=FREE,
        quantization=NAME.of("int8"),
    ),
    *[
        row(
            f"convert.{name}",
            ids=kind(IDS, *ANY_MASK, "0", "-1", "ragged list", "ragged"),
            config=kind({"pad_token_id": 1}, *ALL),
        )
        for name in ("ids_from_marian", "ids_to_marian")
    ],
    # Training.
    row("TransformerSchedule", scale=POSITIVE),
    row("MaskedCrossentropy", reduction=UNTRIED.of("sum")),
    row(
        "training.BestWeights",
        filepath=NAME.of("best.weights.h5"),
        **{name: UNTRIED for name in ("monitor", "better", "best")},
    ),
    row(
        "training.ValidationBleu",
        references=kind(SENTENCES, "texts", *EMPTY),
        **{"translate": UNTRIED, "sources": UNTRIED.of(SENTENCES), "name": UNTRIED},
    ),
    # Figures.
    row(
        "plot.heatmaps",
        **dict.fromkeys("titles number_format color_map center".split(), FREE),
        **dict.fromkeys("x_label y_label bar_label".split(), FREE.of("")),
    ),
    row(
        "plot.head_grid",
        weights=kind(WEIGHTS, *ALONE, "booleans in its shape"),
        title=FREE,
    ),
    row("plot.loss_curve", title=FREE, x_label=FREE.of(""), y_label=FREE.of("")),
    row(
        "plot.flow",
        weights=kind(WEIGHTS[0, 0], "booleans in its shape"),
        row_labels=LABELS.of(list("abc"), "None"),
        column_labels=LABELS.of(list("abc"), "None"),
        title=FREE,
    ),
    row("plot.mask_pictures", masks=kind([masks.causal()]), queries=SIZE, keys=SIZE.optional),
    row(
        "plot.viewer",
        weights=kind({"a": WEIGHTS}),
        source=LABELS.of(list("abc"), "texts"),
        target=LABELS.optional.of(list("abc"), "texts"),
        title=TEXT,
    ),
    row(
        "plot.Viewer.save",
        lambda path: plot.viewer({"a": WEIGHTS}, list("abc"), list("abc")).save(path),
        path=TEXT.of(f"{PATH}.html"),
    ),
    # What weights and heads do.
    row("interpret.attention_rollout", weights=kind({"a": np.full((B, H, T, T), 1 / T)})),
    row("interpret.head_entropy", weights=kind({"a": np.full((B, H, T, V), 1 / V)})),
    row(
        "interpret.head_importance",
        lambda **a: interpret.head_importance(**{"inputs": (IDS, IDS), **a}),
        **{each: KINDS[each] for each in ("model", "objective")},
    ),
    row(
        "interpret.without_heads",
        lambda **a: interpret.without_heads(**a).__enter__(),
        model=OBJECT.of(New(built_transformer)),
        heads=KINDS["heads"],
    ),
    row(
        "interpret.find_leaks",
        lambda **a: interpret.find_leaks(**{"inputs": FLOATS, **a}),
        model=kind(ops.negative, *FUNCTIONS, tried=OF_OBJECTS),
        inputs=KINDS["inputs"].of(FLOATS, *ALONE, "an axis less"),
        causal=kind(True, "0", tried=OF_SCALARS),
        padding=kind(None, "None", tried=OF_SCALARS),
        rows=FLAG.of(True),
        training=FLAG,
        tolerance=NON_NEGATIVE.optional,
    ),
    # Examples.
    row("load_example", name=NAME.of("grammar")),
]


def public_callables(module, prefix=""):
    for name in module.__all__:
        found = getattr(module, name)
        if isinstance(found, types.ModuleType):
            yield from public_callables(found, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


# Callables without arguments, with checks in `fit`, or created by other callables.
LEFT_OUT = {
    *("biases.Bias", "data.Characters", "masks.Grid", "masks.Mask", "plot.Viewer", "rules.Rule"),
    *("decoding.Hypotheses", "decoding.Past", "decoding.ScoredText"),
    *("kernel_regression.Band", "kernel_regression.LeaveOneOut", "scalings.Scaling"),
    "kernel_regression.kernels.Kernel",
    *("interpret.DeletionTest", "interpret.Leak", "interpret.assert_no_leaks"),
    *("training.AveragedWeights", "training.transformer_layout"),
}
KNOWN = {each.name for each in TABLE} | LEFT_OUT


def without_rows():
    """A public name of each callable that has no row, neither by this name nor by another."""
    names = [*public_callables(tfattn), *public_callables(tfattn.decoding, "decoding.")]
    known = [named(name) for name in names if name in KNOWN]
    for name in names:
        if named(name) not in known:
            known.append(named(name))
            yield name


TABLE += [row(name) for name in without_rows()]


def created(valid):
    return valid.make() if isinstance(valid, New) else valid


def arguments_of(row):
    """The valid arguments of a row."""
    return {name: created(valid) for name, valid in row.valid.items()}


def fault_of(row, arguments):
    """None if the call refuses its arguments in the design's form, "taken" if it accepts them, or
    the fault of its error.
    """
    try:
        row.call(**arguments)
    except (ValueError, FileNotFoundError) as error:
        form = r"\b[\w.()]+: `([\w.\[\] ]+)` must .+ Received: "
        found = re.search(form, str(error), re.DOTALL)
        if found is None:
            return f"ValueError of another form: {str(error)[:150]!r}"
        # The error of an inner layer may name its argument `ids`.
        if re.split(r"[\[ .]", found[1])[0] not in (*arguments, "ids"):
            return f"names another argument: {str(error)[:150]!r}"
        return None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]!r}"
    return "taken"


def cases(row, argument):
    """(name, invalid value) for an argument."""
    valid = created(row.valid[argument])
    yield from INVALID.items()
    if isinstance(valid, np.ndarray):
        for name, malform in MALFORMED.items():
            if valid.dtype == bool and name in ("booleans in its shape", "sparse"):
                continue
            value = malform(valid)
            if value is not None:
                yield name, value


def faults_of(row, argument):
    """The faults of a row with an invalid argument, by the name of the value."""
    faults, kind = {}, row.arguments[argument]
    tried = (ALL if row.whole else kind.tried) - kind.allowed
    for name, value in cases(row, argument):
        if name in tried:
            fault = fault_of(row, {**arguments_of(row), argument: value})
            if fault is not None:
                faults[name] = fault
    return faults


def enter_a_folder():
    os.chdir(FOLDER)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch):
    monkeypatch.chdir(FOLDER)  # "abc" is a valid name of a file


@pytest.mark.filterwarnings("ignore")  # warnings of NumPy and TensorFlow about casts
@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_invalid_arguments_are_refused_by_name(case):
    hint = f"Where an argument of {case.name} is of another kind than KINDS says: a row in TABLE"
    if not case.alone:
        try:
            case.call(**arguments_of(case))
        except ValueError as error:
            pytest.fail(f"valid arguments are refused: {error}. {hint}")
    faults = {argument: faults_of(case, argument) for argument in case.valid}
    assert {argument: found for argument, found in faults.items() if found} == {}, hint


# A check, the names of the values that it allows, and the type that it returns for a NumPy integer.
CHECKS = [
    (_checks.positive_int, {"1", "2**63"}, int),
    (_checks.non_negative_int, {"0", "1", "2**63"}, int),
    (_checks.positive_number, {"1", "1.5", "2**63"}, float),
    (_checks.non_negative_number, {"0", "1", "1.5", "2**63"}, float),
    (_checks.finite_number, {"-1", "0", "1", "1.5", "2**63"}, float),
    (_checks.probability, {"0"}, None),
    (lambda who, argument, x: _checks.seed(who, x, argument), {"None", "0", "1"}, int),
    (_checks.boolean, {"True"}, None),
    (_checks.flag, {"True", "0", "1", "a boolean of NumPy"}, None),
    (_checks.path, {"text", "a path"}, None),
    (functools.partial(_checks.array, letters="(D,)"), ARRAYS - {"array of text"}, None),
    (_checks.string, {"text"}, None),
    (_checks.integers, EMPTY, None),
    (_checks.pairs, EMPTY, None),
    (_checks.strings, {*EMPTY, "texts"}, None),
    (_checks.mapping, {"{}"}, None),
    (_checks.vocabulary, set(), None),
]
AT_THE_EDGES = {
    **{"1": 1, "2**63": 2**63},
    **{"a boolean of NumPy": np.True_, "a path": pathlib.Path("abc")},
}


@pytest.mark.parametrize("check, taken, makes", CHECKS)
def test_check_takes_its_kind_alone(check, taken, makes):
    found = set()
    for name, value in {**INVALID, **AT_THE_EDGES}.items():
        try:
            check("who", "argument", value)
        except ValueError as error:
            assert re.match("who: `argument` must .+ Received: argument=", str(error))
        else:
            found.add(name)
    assert found == taken
    if makes:
        assert type(check("who", "argument", np.int64(1))) is makes


# Single cases.


def attention_of(query=FLOATS, value=FLOATS):
    return tfattn.MultiHeadAttention(H, 2)(query, value)


@pytest.mark.slow
def test_attention_empty_batch_length_and_width():
    """No batch and no tokens have results, a width of 0 has none."""
    with pytest.raises(ValueError, match=r"attend: `key` must have the batch size of `query`, 0"):
        tfattn.attend(FLOATS[:0], FLOATS[:1])
    for call in (tfattn.attend, attention_of):
        assert call(FLOATS[:0], FLOATS[:0]).shape == (0, T, D)
        with pytest.raises(ValueError, match=r"`query` must have at least one feature"):
            call(FLOATS[..., :0], FLOATS[..., :0])
    assert attention_of(FLOATS[:, :0], FLOATS).shape == (B, 0, D)
    np.testing.assert_array_equal(attention_of(FLOATS, FLOATS[:, :0]), np.zeros((B, T, D)))


@pytest.mark.parametrize(
    "option, recipe",
    [
        pytest.param(
            *({"sparse": True}, r"tf\.sparse\.to_dense"),
            marks=pytest.mark.skipif(BACKEND == "torch", reason="Keras refuses them there"),
        ),
        pytest.param({"ragged": True}, "to_tensor", marks=pytest.mark.tensorflow),
    ],
)
def test_symbolic_sparse_or_ragged_input_is_refused_with_the_recipe(option, recipe):
    with pytest.raises(ValueError, match=f"`query` must be dense.*{recipe}"):
        attention_of(keras.Input((T, D), **option), keras.Input((T, D)))


def test_symbolic_product_with_a_number_is_dense():
    x, layer = keras.Input((T, D)), tfattn.MultiHeadAttention(H, 2)
    model = keras.Model(x, layer(2 * x, x * 0.5))  # both are sparse, says Keras
    expected = numpy(layer(2 * FLOATS, FLOATS / 2))
    np.testing.assert_allclose(numpy(model(FLOATS)), expected, rtol=1e-5)


def test_seed_is_checked_without_any_dropout():
    for make in (functools.partial(tfattn.MultiHeadAttention, H, 2), tfattn.AddNorm):
        with pytest.raises(ValueError, match=r"`seed` must be below 2\*\*63\. Received: seed="):
            make(seed=2**63)
        assert type(make(seed=np.int64(7)).seed) is int


def test_vocabulary_file_of_endless_json_is_refused(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text('{"words": ' + "[" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match=r"Vocabulary\.load: `path` must name a file that"):
        data.Vocabulary.load(path)
