"""Every public callable, each of its arguments, and a list of nonsense: what comes is a
`ValueError` in the design's form, or the nonsense has a meaning that the documentation gives.

A row of `TABLE` is a callable, arguments that are right, and for each the names of the nonsense
that is none there. A public name without a row fails.
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
from tests.tensors import BACKEND, tf
from tfattn import (
    biases,
    convert,
    data,
    kernels,
    masks,
    normalizers,
    plot,
    rules,
    scalings,
    smoothing,
    training,
)
from tfattn.core import scores

B, T, D, H, V = 2, 3, 4, 5, 11

NONSENSE: dict[str, Any] = {
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

# What is made of a right array: nonsense that is right but for one thing.
BENT: dict[str, Callable[[np.ndarray], Any]] = {
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

# Nonsense that is none, by the kind of the argument.
SIZE = frozenset()
COUNT = frozenset({"0"})
POSITIVE = frozenset({"1.5"})
NON_NEGATIVE = frozenset({"0", "1.5"})
RATE = frozenset({"0"})
FLAG = frozenset({"True"})
ASKED = frozenset({"True", "0"})  # a flag of a call: 0 and 1 will do
OPTIONAL = frozenset({"None"})
SEED = frozenset({"None", "0"})
TEXT = frozenset({"text"})
LIST_OF_TEXT = frozenset({"texts"})
TOKENS = frozenset()
ALONE = frozenset({"empty batch", "other batch"})  # where no other argument has a batch
FUNCTION = frozenset({"function", "a class"})
ANY = frozenset({*NONSENSE, *BENT})
NUMBERS = frozenset({"booleans in its shape", "an axis less", "other width"})
ANY_BOOLEANS = frozenset(
    {"True", "an axis more", "an axis less", "empty batch", "other batch", "width 0", "other width"}
)
NOTHING = frozenset({"[]", "{}"})


class Row(NamedTuple):
    name: str
    call: Callable
    good: dict[str, Any]  # zero-argument functions are called for a new one each time
    kinds: dict[str, frozenset]
    alone: bool = False  # nothing right is known here, and so only nonsense is tried

    def wrong_alone(self):
        return self._replace(alone=True)


class New(NamedTuple):
    """A right argument that is made anew for each call."""

    make: Callable


def row(name, call, /, **arguments):
    """A row; each argument is (what is right, the nonsense that is none)."""
    good = {argument: value for argument, (value, _) in arguments.items()}
    return Row(name, call, good, {argument: kind for argument, (_, kind) in arguments.items()})


def made(cls, **required):
    """A row for a constructor: `required` are sizes that a case needs and does not spoil."""
    return lambda **arguments: cls(**{**required, **arguments})


def called(make, *first):
    """A row for a layer's call: the tensors named `first` without names, as most people write."""

    def call(**arguments):
        return make()(*[arguments.pop(name) for name in first], **arguments)

    return call


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

# Masks of 0 and 1 are taken, and so is one mask for each row of the batch.
MASK = OPTIONAL
SQUARE_MASK = OPTIONAL | {"an axis less"}
SQUARE_BIAS = OPTIONAL | {"an axis less"}

SEEDED = {"dropout": (0.1, RATE), "seed": (3, SEED)}
STACK = {
    "num_layers": (1, SIZE),
    "width": (4, SIZE),
    "num_heads": (2, OPTIONAL),
    "hidden_dim": (4, OPTIONAL),
    "dropout": (0.1, RATE | OPTIONAL),
    "block": (None, OPTIONAL),
    "positions": (None, OPTIONAL),
    "seed": (3, SEED),
}
RECURRENT = {
    "width": (4, SIZE),
    "units": (4, SIZE),
    "num_layers": (1, SIZE),
    "cell": (keras.layers.GRUCell, SIZE),
    **SEEDED,
}
BLOCK = {
    "num_heads": (2, SIZE),
    "hidden_dim": (4, SIZE),
    "attention_dropout": (0.1, RATE),
    "norm_first": (True, FLAG),
    "attention": (None, OPTIONAL),
    "feed_forward": (None, OPTIONAL),
    "norm": (None, OPTIONAL),
    **SEEDED,
}
WIDE = frozenset({"other width"})  # where widths may differ
ATTENTION_CALL = {
    "query": (FLOATS, TOKENS),
    "value": (FLOATS, WIDE),
    "key": (FLOATS, OPTIONAL),
    "query_mask": (PADDING, MASK),
    "value_mask": (PADDING, MASK),
    "key_mask": (PADDING, MASK),
    "attention_mask": (PADDING[:, None] & PADDING[..., None], SQUARE_MASK),
    "valid_lens": (LENGTHS, OPTIONAL),
    "use_causal_mask": (True, ASKED),
    "return_attention_scores": (True, ASKED),
    "training": (True, ASKED | OPTIONAL),
    "bias": (SQUARE, SQUARE_BIAS),
}
ANY_WIDTH = {**ATTENTION_CALL, "query": (FLOATS, WIDE), "key": (FLOATS, OPTIONAL | WIDE)}
SEARCH = {
    "step": (step, FUNCTION),
    "state": ((), ANY),
    "batch_size": (2, SIZE),
    "max_length": (3, SIZE),
    "begin_id": (2, COUNT),
    "end_id": (3, COUNT),
    "padding_id": (0, COUNT),
    "return_state": (True, FLAG),
    "rules": ((), frozenset({"[]"})),
}
TRACE = types.SimpleNamespace(
    **dict.fromkeys(("tokens", "candidate_tokens"), np.full((1, 1, 1), 2)),
    **dict.fromkeys(("parents", "candidate_parents"), np.zeros((1, 1, 1), int)),
    **dict.fromkeys(("scores", "candidate_scores"), np.zeros((1, 1, 1), "float32")),
    **dict.fromkeys(("ended", "died", "kept"), np.ones((1, 1, 1), bool)),
)
BEAMS = {
    "trace": (TRACE, frozenset()),
    "words": (["a", "b", "c"], frozenset({"function", "a class"})),
    "row": (0, frozenset({"0"})),
    "left_out": (2, frozenset({"0"})),
}


OPTIONS = ("attention_mask", "valid_lens", "use_causal_mask", "return_attention_scores", "training")
LISTS = frozenset({"[]", "{}"})
NUMBER = frozenset({"NaN", "inf", "-1", "0", "1.5"})
ARRAYS = frozenset(
    {"array of rank 1", "array of rank 5", "an axis more", "an axis less", "width 0"}
)
SCORES = frozenset({*ARRAYS, "empty batch"})
LOGITS = np.zeros((B, T, V), "float32")
MESH = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), devices=["cpu:0"])
SMALL = {"vocabulary_size": V, "num_layers": 1, "width": 4, "num_heads": 2, "hidden_dim": 3}
FOLDER = tempfile.mkdtemp()
PATH = f"{FOLDER}/lines"
pathlib.Path(PATH).write_text("a b\nb\n", encoding="utf-8")
PARTS = data.SubwordVocabulary.from_sentences(["a b", "b a"] * 3, 9)
WORDS_PATH, PARTS_PATH = f"{FOLDER}/words.json", f"{FOLDER}/parts"
WORDS.save(WORDS_PATH)
PARTS.save(PARTS_PATH)
BATCHES = {
    "pairs": (PAIRS, SIZE),
    "source_vocabulary": (WORDS, SIZE),
    "target_vocabulary": (WORDS, SIZE),
    "max_length": (5, OPTIONAL),
    "shuffle_seed": (3, SEED),
}
VIEWER = {
    "weights": ({"a": WEIGHTS}, SIZE),
    "source": (list("abc"), LIST_OF_TEXT),
    "target": (list("abc"), OPTIONAL | LIST_OF_TEXT),
    "target_in": (None, OPTIONAL),
    "row": (1, COUNT),
    "title": ("title", TEXT),
}


@functools.cache
def built_heads():
    layer = tfattn.MultiHeadAttention(H, 2)
    layer.build(FLOATS.shape, FLOATS.shape)
    return layer


def built(layer):
    layer.build(FLOATS.shape, FLOATS.shape)
    return layer


@functools.cache
def transformer():
    sizes = {name: size for name, size in SMALL.items() if name != "vocabulary_size"}
    return tfattn.Transformer(len(WORDS), **sizes)


def built_transformer():
    model = transformer()
    model.build_for_any()
    return model


# Of a folder with a whole model in it.
SERVED = {
    "model": (New(built_transformer), SIZE),
    "vocabularies": ((WORDS, WORDS), SIZE),
    "folder": (f"{FOLDER}/served", TEXT),
}


@functools.cache
def seq2seq():
    return tfattn.BahdanauSeq2Seq(len(WORDS), width=3, units=3)


@functools.cache
def language_model():
    return tfattn.CausalLM(**SMALL)


@functools.cache
def regressor():
    model = tfattn.NadarayaWatsonRegressor()
    model.fit(FLOATS[:, 0], FLOATS[:, 0], epochs=1, verbose=0)
    return model


@functools.cache
def smooth():
    return smoothing.KernelRegression(bandwidth=0.5).fit(FLOATS[:, 0], FLOATS[:, 0])


# Keras takes arrays for initializers, and None for its default.
INITIALIZER = ("zeros", FUNCTION | OPTIONAL | {n for n in NONSENSE if "array" in n})

TABLE = [
    # Attention.
    row(
        "DotProductAttention",
        tfattn.DotProductAttention,
        scale=(2.0, POSITIVE | OPTIONAL),
        **SEEDED,
    ),
    row("AdditiveAttention", tfattn.AdditiveAttention, units=(3, SIZE), **SEEDED),
    row("BilinearAttention", tfattn.BilinearAttention, **SEEDED),
    row(
        "NadarayaWatson",
        tfattn.NadarayaWatson,
        kernel=("gaussian", FUNCTION),
        bandwidth=(1.0, POSITIVE),
        trainable_bandwidth=(True, FLAG),
        leave_one_out=(True, FLAG),
        **SEEDED,
    ),
    row(
        "Attention", tfattn.Attention, score=(None, OPTIONAL), normalizer=(None, OPTIONAL), **SEEDED
    ),
    row(
        "MultiHeadAttention",
        tfattn.MultiHeadAttention,
        num_heads=(2, SIZE),
        key_dim=(2, SIZE),
        value_dim=(2, OPTIONAL),
        use_bias=(True, FLAG),
        output_shape=(4, OPTIONAL),
        score=(None, OPTIONAL),
        num_key_value_heads=(1, OPTIONAL),
        kernel_initializer=INITIALIZER,
        bias_initializer=INITIALIZER,
        output_kernel_initializer=(None, INITIALIZER[1]),
        kernel_regularizer=(None, OPTIONAL | FUNCTION),
        bias_regularizer=(None, OPTIONAL | FUNCTION),
        activity_regularizer=(None, OPTIONAL | FUNCTION),
        kernel_constraint=(None, OPTIONAL | FUNCTION),
        bias_constraint=(None, OPTIONAL | FUNCTION),
        positions=(None, OPTIONAL),
        attention_axes=(1, OPTIONAL),
        sliding_window=(2, OPTIONAL),
        flash_attention=(False, FLAG | OPTIONAL),
        use_gate=(True, FLAG),
        normalizer=(None, OPTIONAL),
        **SEEDED,
    ),
    row(
        "DotProductAttention()",
        called(tfattn.DotProductAttention, "query", "value"),
        **ATTENTION_CALL,
    ),
    row("AdditiveAttention()", called(made(tfattn.AdditiveAttention, units=3)), **ANY_WIDTH),
    row("BilinearAttention()", called(tfattn.BilinearAttention, "query", "value"), **ANY_WIDTH),
    row("NadarayaWatson()", called(tfattn.NadarayaWatson, "query", "value"), **ATTENTION_CALL),
    row("Attention()", called(tfattn.Attention), **ATTENTION_CALL),
    row(
        "MultiHeadAttention()",
        called(lambda: tfattn.MultiHeadAttention(H, 2), "query", "value"),
        **ANY_WIDTH,
    ),
    row("MultiHeadAttention() built", called(built_heads, "query", "value"), **ATTENTION_CALL),
    # Functions of the engine.
    row(
        "attend",
        tfattn.attend,
        query=(FLOATS, TOKENS),
        value=(FLOATS, WIDE | {"width 0"}),
        key=(FLOATS, OPTIONAL),
        score=(scores.dot_product, FUNCTION),
        parameters=((), {"[]"}),
        mask=(PADDING[:, None] & PADDING[..., None], SQUARE_MASK),
        bias=(SQUARE, SQUARE_BIAS),
        dropout=(0.1, RATE),
        seed=(3, SEED),
        return_weights=(True, ASKED),
        path=("dense", OPTIONAL),
        return_log_sum_exp=(True, ASKED),
        normalizer=(None, OPTIONAL),
    ),
    row(
        "masked_softmax",
        tfattn.masked_softmax,
        scores=(SQUARE, TOKENS),
        valid_lens=(LENGTHS, OPTIONAL),
        mask=(PADDING[:, None], SQUARE_MASK),
    ),
    row(
        "merge_attentions",
        tfattn.merge_attentions,
        outputs=([FLOATS, FLOATS], SIZE),
        log_sum_exps=([SQUARE[..., 0], SQUARE[..., 0]], SIZE),
    ),
    row(
        "attention_weights",
        lambda model: tfattn.attention_weights(model, FLOATS, FLOATS),
        model=(New(tfattn.DotProductAttention), SIZE),
    ),
    row(
        "complexity",
        tfattn.complexity,
        n=(7, SIZE),
        d=(5, SIZE),
        kernel_size=(3, SIZE),
        window=(2, SIZE),
    ),
    row(
        "normalizers.sparsemax",
        normalizers.sparsemax,
        scores=(SQUARE, SCORES),
        visible=(PADDING[:, None], OPTIONAL | {"an axis less"}),
    ),
    row("normalizers.top_k", normalizers.top_k, k=(2, SIZE)),
    row(
        "normalizers.top_k()",
        normalizers.top_k(2),
        scores=(SQUARE, SCORES),
        visible=(PADDING[:, None], OPTIONAL | {"an axis less"}),
    ),
    row(
        "normalizers.add_sinks",
        normalizers.add_sinks,
        output=(FLOATS, WIDE | {"width 0"}),
        log_sum_exp=(SQUARE[..., 0], SIZE),
        sinks=(0.0, NUMBER | {"array of rank 1"}),
    ),
    *[
        row(
            f"kernels.{name}",
            getattr(kernels, name),
            squared=(SQUARE, ALONE | NUMBER | ARRAYS | WIDE | {"[]"}),
        )
        for name in kernels.names()
    ],
    row("kernels.get", kernels.get, kernel=("gaussian", FUNCTION)),
    row("kernels.names", kernels.names),
    row("kernels.support", kernels.support, kernel=("gaussian", FUNCTION)),
    # Masks, biases and scalings.
    row("masks.causal", masks.causal),
    row("masks.window", masks.window, size=(2, SIZE)),
    row("masks.strided", masks.strided, step=(2, SIZE)),
    row("masks.chunks", masks.chunks, size=(2, SIZE)),
    row("masks.chunk_ends", masks.chunk_ends, size=(2, SIZE), count=(1, SIZE)),
    row("masks.prefix", masks.prefix, length=(2, COUNT)),
    row(
        "masks.padding",
        masks.padding,
        valid_lens=(LENGTHS, ALONE | {"an axis more", "width 0", "other width"}),
    ),
    row(
        "masks.explicit",
        masks.explicit,
        mask=(PADDING[:, None], ALONE | {"an axis more", "an axis less", "width 0", "other width"}),
    ),
    row(
        "masks.segments",
        masks.segments,
        query_segments=(IDS, WIDE | {"width 0"}),
        key_segments=(IDS, OPTIONAL | WIDE | {"width 0"}),
    ),
    row(
        "masks.positions_in_segments",
        masks.positions_in_segments,
        ids=(IDS, ALONE | WIDE | {"width 0"}),
    ),
    row(
        "masks.per_head",
        masks.per_head,
        rules=([masks.causal(), masks.causal()], SIZE),
        heads=([1, 2], OPTIONAL),
    ),
    row(
        "masks.every",
        masks.every,
    ),
    row(
        "masks.blocks",
        masks.blocks,
        plan=(PADDING[:, None], ALONE | {"an axis more", "an axis less", "width 0", "other width"}),
        size=(2, SIZE),
    ),
    row(
        "masks.plan",
        masks.plan,
        mask=(masks.causal(), SIZE),
        num_queries=(3, SIZE),
        num_keys=(3, SIZE),
        size=(2, SIZE),
    ),
    row("biases.alibi", biases.alibi, num_heads=(2, SIZE)),
    row(
        "biases.explicit",
        biases.explicit,
        bias=(SQUARE, ALONE | {"an axis more", "an axis less", "width 0", "other width"}),
    ),
    row(
        "biases.relative",
        biases.relative,
        table=(FLOATS[0], ALONE | WIDE),
        bidirectional=(False, FLAG),
        max_distance=(128, SIZE),
    ),
    row("scalings.linear", scalings.linear, factor=(2.0, POSITIVE)),
    row("scalings.dynamic", scalings.dynamic, factor=(2.0, POSITIVE), original_length=(7, SIZE)),
    row(
        "scalings.yarn",
        scalings.yarn,
        factor=(2.0, POSITIVE),
        original_length=(7, SIZE),
        beta_fast=(32.0, POSITIVE),
        beta_slow=(1.0, POSITIVE),
        attention_factor=(1.0, POSITIVE | OPTIONAL),
        truncate=(True, FLAG),
    ),
    row(
        "scalings.llama3",
        scalings.llama3,
        factor=(2.0, POSITIVE),
        low_freq_factor=(1.0, POSITIVE),
        high_freq_factor=(4.0, POSITIVE),
        original_length=(7, SIZE),
    ),
    # Scores, normalizers and positions.
    row("Score", tfattn.Score),
    row("DotProductScore", tfattn.DotProductScore, scale=(2.0, POSITIVE | OPTIONAL)),
    row(
        "NormalizedDotProductScore",
        tfattn.NormalizedDotProductScore,
        scale=(2.0, POSITIVE | OPTIONAL),
        epsilon=(1e-6, POSITIVE),
    ),
    row("SoftCapScore", tfattn.SoftCapScore, cap=(2.0, POSITIVE), score=(None, OPTIONAL)),
    row("AdditiveScore", tfattn.AdditiveScore, units=(3, SIZE)),
    row("BilinearScore", tfattn.BilinearScore),
    row(
        "CosineScore",
        tfattn.CosineScore,
        temperature=(1.0, POSITIVE),
        trainable_temperature=(True, FLAG),
    ),
    row(
        "KernelScore",
        tfattn.KernelScore,
        kernel=("gaussian", FUNCTION),
        bandwidth=(1.0, POSITIVE),
        trainable_bandwidth=(True, FLAG),
    ),
    *[
        row(
            f"{name}()",
            called(make, "query", "key"),
            query=(FLOATS, WIDE if wide else TOKENS),
            key=(FLOATS, WIDE if wide else TOKENS),
        )
        for name, make, wide in (
            ("DotProductScore", tfattn.DotProductScore, False),
            ("NormalizedDotProductScore", tfattn.NormalizedDotProductScore, False),
            ("SoftCapScore", made(tfattn.SoftCapScore, cap=2.0), False),
            ("AdditiveScore", made(tfattn.AdditiveScore, units=3), True),
            ("BilinearScore", tfattn.BilinearScore, True),
            ("CosineScore", tfattn.CosineScore, False),
            ("KernelScore", tfattn.KernelScore, False),
        )
    ],
    row("Normalizer", tfattn.Normalizer),
    row("Sparsemax", tfattn.Sparsemax),
    row("TopKSoftmax", tfattn.TopKSoftmax, k=(2, SIZE)),
    row("AttentionSinks", tfattn.AttentionSinks, initializer=INITIALIZER),
    row("HeadPositions", tfattn.HeadPositions),
    row("AlibiPositions", tfattn.AlibiPositions),
    row(
        "RotaryPositions",
        tfattn.RotaryPositions,
        base=(100.0, POSITIVE),
        rotary_dim=(2, OPTIONAL),
        scaling=(None, OPTIONAL),
        interleaved=(True, FLAG),
    ),
    row(
        "RelativePositionBias",
        tfattn.RelativePositionBias,
        num_buckets=(8, SIZE),
        max_distance=(128, SIZE),
        bidirectional=(True, FLAG),
        initializer=INITIALIZER,
    ),
    row(
        "SinusoidalPositionalEncoding",
        tfattn.SinusoidalPositionalEncoding,
        input_scale=(2.0, POSITIVE),
        max_wavelength=(100.0, POSITIVE),
    ),
    row(
        "LearnedPositionalEncoding",
        tfattn.LearnedPositionalEncoding,
        max_length=(7, SIZE),
        input_scale=(2.0, POSITIVE),
        initializer=INITIALIZER,
    ),
    *[
        row(
            f"{name}()",
            called(make, "inputs"),
            inputs=(FLOATS, WIDE),
            start_index=(1, COUNT),
            positions=(IDS, OPTIONAL | {"an axis less"}),
        )
        for name, make in (
            ("SinusoidalPositionalEncoding", tfattn.SinusoidalPositionalEncoding),
            ("LearnedPositionalEncoding", made(tfattn.LearnedPositionalEncoding, max_length=99)),
        )
    ],
    # Blocks.
    row(
        "AddNorm",
        tfattn.AddNorm,
        norm_first=(True, FLAG),
        epsilon=(1e-5, POSITIVE),
        norm=(None, OPTIONAL),
        **SEEDED,
    ),
    row(
        "AddNorm()",
        called(tfattn.AddNorm, "inputs"),
        inputs=(FLOATS, TOKENS),
        outputs=(FLOATS, OPTIONAL),
        training=(True, ASKED | OPTIONAL),
    ),
    row(
        "PositionwiseFeedForward",
        tfattn.PositionwiseFeedForward,
        hidden_dim=(3, SIZE),
        output_dim=(2, OPTIONAL),
        activation=("relu", FUNCTION | OPTIONAL),
        kernel_initializer=INITIALIZER,
        **SEEDED,
    ),
    row(
        "GatedFeedForward",
        tfattn.GatedFeedForward,
        hidden_dim=(3, SIZE),
        output_dim=(2, OPTIONAL),
        activation=("relu", FUNCTION | OPTIONAL),
        use_bias=(True, FLAG),
        kernel_initializer=INITIALIZER,
        **SEEDED,
    ),
    row(
        "training.SimCutCrossentropy",
        training.SimCutCrossentropy,
        weight=(3.0, NON_NEGATIVE),
        label_smoothing=(0.1, RATE),
        padding_id=(0, COUNT),
    ),
    *[
        row(
            f"{cls.__name__}()",
            called(made(cls, hidden_dim=3), "inputs"),
            inputs=(FLOATS, ALONE | WIDE | {"an axis more", "an axis less", "array of rank 5"}),
            training=(True, ASKED | OPTIONAL),
        )
        for cls in (tfattn.PositionwiseFeedForward, tfattn.GatedFeedForward)
    ],
    row("TransformerEncoderBlock", tfattn.TransformerEncoderBlock, **BLOCK),
    row("TransformerDecoderBlock", tfattn.TransformerDecoderBlock, **BLOCK),
    row(
        "TransformerEncoderBlock()",
        called(made(tfattn.TransformerEncoderBlock, num_heads=4, hidden_dim=3), "inputs"),
        inputs=(FLOATS, WIDE),
        mask=(PADDING, MASK),
        **{name: ATTENTION_CALL[name] for name in OPTIONS},
        bias=ATTENTION_CALL["bias"],
    ),
    row(
        "TransformerDecoderBlock()",
        called(made(tfattn.TransformerDecoderBlock, num_heads=4, hidden_dim=3), "inputs"),
        inputs=(FLOATS, WIDE),
        memory=(FLOATS, WIDE),
        inputs_mask=(PADDING, MASK),
        memory_mask=(PADDING, MASK),
        memory_attention_mask=ATTENTION_CALL["attention_mask"],
        **{name: ATTENTION_CALL[name] for name in OPTIONS},
    ),
    # Recurrent layers.
    row(
        "RecurrentEncoder",
        tfattn.RecurrentEncoder,
        vocabulary_size=(V, SIZE),
        bidirectional=(True, FLAG),
        embedding=(None, OPTIONAL),
        **RECURRENT,
    ),
    row(
        "RecurrentDecoder",
        tfattn.RecurrentDecoder,
        vocabulary_size=(V, SIZE),
        score=(None, OPTIONAL),
        embedding=(None, OPTIONAL),
        **RECURRENT,
    ),
    row(
        "RecurrentEncoder()",
        called(made(tfattn.RecurrentEncoder, vocabulary_size=V, width=3, units=3), "ids"),
        ids=(IDS, ALONE | WIDE),
        return_state=(True, ASKED),
        training=(True, ASKED | OPTIONAL),
    ),
    row(
        "RecurrentDecoder()",
        called(made(tfattn.RecurrentDecoder, vocabulary_size=V, width=3, units=3), "ids"),
        ids=(IDS, WIDE),
        memory=(FLOATS, WIDE),
        memory_mask=(PADDING, MASK),
        initial_state=(None, OPTIONAL),
        return_attention_scores=(True, ASKED),
        return_state=(True, ASKED),
        training=(True, ASKED | OPTIONAL),
    ),
    # Models.
    row(
        "TransformerEncoder",
        tfattn.TransformerEncoder,
        vocabulary_size=(V, SIZE),
        embedding=(None, OPTIONAL),
        **STACK,
    ),
    row(
        "TransformerDecoder",
        tfattn.TransformerDecoder,
        vocabulary_size=(V, SIZE),
        embedding=(None, OPTIONAL),
        **STACK,
    ),
    row(
        "Transformer",
        tfattn.Transformer,
        source_vocabulary_size=(V, SIZE),
        target_vocabulary_size=(V, OPTIONAL),
        share_embeddings=(True, FLAG),
        **STACK,
    ),
    row(
        "CausalLM", tfattn.CausalLM, vocabulary_size=(V, SIZE), tie_embeddings=(True, FLAG), **STACK
    ),
    row(
        "BahdanauSeq2Seq",
        tfattn.BahdanauSeq2Seq,
        source_vocabulary_size=(V, SIZE),
        target_vocabulary_size=(V, OPTIONAL),
        bidirectional=(True, FLAG),
        score=(None, OPTIONAL),
        share_embeddings=(True, FLAG),
        **RECURRENT,
    ),
    row(
        "NadarayaWatsonRegressor",
        tfattn.NadarayaWatsonRegressor,
        kernel=("gaussian", FUNCTION),
        bandwidth=(1.0, POSITIVE | OPTIONAL),
        trainable_bandwidth=(True, FLAG),
        shared_bandwidth=(False, FLAG),
        empty=("nearest", set()),
    ),
    row(
        "TransformerEncoder()",
        called(made(tfattn.TransformerEncoder, **SMALL), "ids"),
        ids=(IDS, ALONE | WIDE | {"width 0"}),
        training=(True, ASKED | OPTIONAL),
    ),
    row(
        "TransformerDecoder()",
        called(made(tfattn.TransformerDecoder, **SMALL), "ids"),
        ids=(IDS, WIDE | {"width 0"}),
        memory=(FLOATS, OPTIONAL | WIDE),
        memory_mask=(PADDING, MASK),
        training=(True, ASKED | OPTIONAL),
    ),
    row(
        "CausalLM()",
        called(lambda: language_model(), "ids"),
        ids=(IDS, ALONE | WIDE | {"width 0"}),
        training=(True, ASKED | OPTIONAL),
    ),
    row(
        "CausalLM.encode",
        lambda **a: language_model().encode(**a),
        prompt=(IDS, ALONE | {"width 0"}),
        max_length=(4, OPTIONAL),
    ),
    *[
        one
        for name, model in (
            ("Transformer", lambda: transformer()),
            ("BahdanauSeq2Seq", lambda: seq2seq()),
        )
        for one in (
            row(
                f"{name}()",
                called(model, "inputs"),
                inputs=((IDS, IDS), SIZE),
                training=(True, ASKED | OPTIONAL),
            ),
            row(
                f"{name}() source",
                lambda inputs, model=model: model()((inputs, IDS)),
                inputs=(IDS, WIDE | {"width 0"}),
            ),
            row(
                f"{name}() target",
                lambda inputs, model=model: model()((IDS, inputs)),
                inputs=(IDS, WIDE | {"width 0"}),
            ),
            row(
                f"{name}.encode",
                lambda model=model, **a: model().encode(**a),
                source=(IDS, ALONE | WIDE | {"width 0"}),
                max_length=(4, OPTIONAL),
            ),
        )
    ],
    row(
        "NadarayaWatsonRegressor.fit",
        lambda **a: tfattn.NadarayaWatsonRegressor().fit(**a, verbose=0),
        x=(FLOATS[:, 0], {"booleans in its shape", "an axis less", *WIDE}),
        y=(FLOATS[:, 0], {"booleans in its shape", "an axis less", *WIDE}),
        epochs=(1, COUNT),
        batch_size=(4, OPTIONAL),
    ),
    *[
        row(
            f"NadarayaWatsonRegressor.{name}",
            lambda x, name=name: getattr(regressor(), name)(x),
            x=(FLOATS[:, 0], ALONE | {"[]", "booleans in its shape"}),
        )
        for name in ("predict", "attention_weights")
    ],
    # Kernel regression without a layer.
    row(
        "smoothing.KernelRegression",
        lambda **a: smoothing.KernelRegression(**a).fit(FLOATS[0], FLOATS[0]),
        kernel=("gaussian", SIZE),
        bandwidth=(None, POSITIVE | OPTIONAL),
        metric=("each", SIZE),
        degree=(0, COUNT),
        categorical=([0], NOTHING),
        empty=("nearest", SIZE),
        leave_out=("point", SIZE),
    ),
    row(
        "smoothing.KernelRegression.fit",
        lambda **a: smoothing.KernelRegression(bandwidth=0.5).fit(**a),
        x=(FLOATS[:, 0], NUMBERS),
        y=(FLOATS[:, 0], NUMBERS),
        sample_weight=(np.ones(B), OPTIONAL | {"booleans in its shape"}),
        names=(None, OPTIONAL),
    ),
    row(
        "smoothing.KernelRegression.fit from a start",
        lambda start: smoothing.KernelRegression().fit(FLOATS[0], FLOATS[0], start=start),
        start=(1.0, POSITIVE | OPTIONAL),
    ),
    *[
        row(
            f"smoothing.KernelRegression.{name}",
            lambda x, name=name: getattr(smooth(), name)(x),
            x=(FLOATS[:, 0], ALONE | {"[]", "booleans in its shape"}),
        )
        for name in ("predict", "derivative", "weights", "effective_neighbours", "variance")
    ],
    row(
        "smoothing.KernelRegression.bands",
        lambda **a: smooth().bands(**a),
        x=(FLOATS[:, 0], ALONE | {"[]", "booleans in its shape"}),
        level=(0.9, SIZE),
        method=("bootstrap", SIZE),
        replicas=(3, SIZE),
        seed=(3, SEED),
    ),
    row(
        "smoothing.kernels.Kernel",
        smoothing.kernels.Kernel,
        name=("mine", TEXT),
        support=(2.0, POSITIVE | {"inf"}),
        log=(np.negative, FUNCTION),
        value=(np.negative, FUNCTION),
        slope=(np.add, FUNCTION),
        smooth=(True, FLAG),
        pointed=(False, FLAG),
        reach=(None, FUNCTION | OPTIONAL),
        box_sums=(False, FLAG),
    ),
    row("smoothing.kernels.get", smoothing.kernels.get, kernel=("gaussian", SIZE)),
    row(
        "smoothing.kernels.aitchison_aitken",
        smoothing.kernels.aitchison_aitken,
        same=(np.array([True, False]), ANY_BOOLEANS),
        width=(0.2, COUNT),
        categories=(3, SIZE),
    ),
    # Decoding.
    row("greedy_search", tfattn.greedy_search, **SEARCH),
    row(
        "beam_search",
        tfattn.beam_search,
        num_beams=(2, SIZE),
        length_penalty=(1.0, NON_NEGATIVE),
        num_results=(1, SIZE),
        diverse=(None, OPTIONAL),
        return_trace=(True, FLAG),
        **SEARCH,
    ),
    row(
        "sample",
        tfattn.sample,
        temperature=(1.0, POSITIVE),
        top_k=(2, OPTIONAL),
        top_p=(0.5, OPTIONAL),
        seed=(3, SEED),
        **SEARCH,
    ),
    row(
        "translate",
        lambda **a: tfattn.translate(
            transformer() if a["model"] is True else a["model"],
            **{n: x for n, x in a.items() if n != "model"},
        ),
        model=(True, FLAG),
        sentences=(SENTENCES, LIST_OF_TEXT | {"[]", "{}"}),
        source_vocabulary=(WORDS, SIZE),
        target_vocabulary=(WORDS, SIZE),
        search=(tfattn.greedy_search, FUNCTION),
        batch_size=(2, SIZE),
        max_length=(3, OPTIONAL),
        progress=(False, FLAG),
    ),
    row(
        "translate_stream",
        lambda **a: tfattn.translate_stream(
            transformer() if a["model"] is True else a["model"],
            **{n: x for n, x in a.items() if n != "model"},
        ),
        model=(True, FLAG),
        sentence=("a bird", TEXT),
        source_vocabulary=(WORDS, SIZE),
        target_vocabulary=(WORDS, SIZE),
        search=(tfattn.greedy_search, SIZE),
        max_length=(3, OPTIONAL),
    ),
    row("rules.RepetitionPenalty", rules.RepetitionPenalty, penalty=(1.2, POSITIVE)),
    row("rules.NoRepeatNgrams", rules.NoRepeatNgrams, size=(2, SIZE)),
    row("rules.ForbiddenTokens", rules.ForbiddenTokens, tokens=([3], SIZE)),
    row("rules.TargetPrefix", rules.TargetPrefix, tokens=([3], SIZE)),
    row(
        "rules.RequiredTokens",
        rules.RequiredTokens,
        tokens=([3], SIZE),
        per_sentence=(False, FLAG),
    ),
    row("rules.MinLength", rules.MinLength, length=(2, COUNT)),
    row("rules.MinP", rules.MinP, share=(0.1, SIZE)),
    row("rules.TypicalP", rules.TypicalP, mass=(0.9, SIZE)),
    row(
        "rules.tokens_of",
        rules.tokens_of,
        vocabulary=(WORDS, SIZE),
        words=(["a", "b"], LIST_OF_TEXT | {"[]", "{}"}),
    ),
    row("rules.CoveragePenalty", rules.CoveragePenalty, strength=(0.2, NON_NEGATIVE)),
    # Data.
    row("data.toy_translation", data.toy_translation, num_pairs=(3, SIZE), seed=(3, {"0", "-1"})),
    row(
        "data.split_pairs",
        data.split_pairs,
        pairs=(PAIRS, SIZE),
        fraction=(0.5, SIZE),
        seed=(3, {"0", "-1"}),
    ),
    row("data.swapped_words", data.swapped_words, source=("a b", TEXT), target=("b a", TEXT)),
    row(
        "data.read_parallel", data.read_parallel, source_path=(PATH, SIZE), target_path=(PATH, SIZE)
    ),
    row(
        "data.Vocabulary",
        data.Vocabulary,
        words=(["a", "b"], LIST_OF_TEXT | {"[]", "{}"}),
        tokenizer=(data.Characters(), OPTIONAL),
    ),
    row(
        "data.Vocabulary.from_sentences",
        data.Vocabulary.from_sentences,
        sentences=(SENTENCES, LIST_OF_TEXT | {"[]", "{}"}),
        min_count=(1, SIZE),
        max_size=(9, OPTIONAL),
        tokenizer=(data.Characters(), OPTIONAL),
    ),
    row("data.Vocabulary.encode", WORDS.encode, sentence=("a b", TEXT)),
    row("data.Vocabulary.decode", WORDS.decode, ids=([2, 4], {"[]", "{}"})),
    row("data.Vocabulary.save", WORDS.save, path=(PATH + ".words", TEXT)),
    row("data.Vocabulary.load", data.Vocabulary.load, path=(WORDS_PATH, SIZE)),
    row(
        "data.load_vocabulary",
        data.load_vocabulary,
        path=(WORDS_PATH, SIZE),
        tokenizer=(None, OPTIONAL),
    ),
    row("data.Characters()", data.Characters(), sentence=("a b", TEXT)),
    row("data.Characters.join", data.Characters().join, words=(["a"], LIST_OF_TEXT | NOTHING)),
    row("data.Moses", data.Moses, language=("en", TEXT), lowercase=(True, FLAG)),
    row("data.Moses()", data.Moses("en"), sentence=("a b", TEXT)),
    row("data.Moses.join", data.Moses("en").join, words=(["a"], LIST_OF_TEXT | NOTHING)),
    row(
        "data.SubwordVocabulary",
        data.SubwordVocabulary,
        model=(pathlib.Path(PARTS_PATH).read_bytes(), SIZE),
    ),
    row(
        "data.SubwordVocabulary.from_sentences",
        data.SubwordVocabulary.from_sentences,
        sentences=(SENTENCES, LIST_OF_TEXT),
        size=(9, SIZE),
    ),
    row("data.SubwordVocabulary.encode", PARTS.encode, sentence=("a b", TEXT)),
    row("data.SubwordVocabulary.decode", PARTS.decode, ids=([2, 4], {"[]", "{}"})),
    row("data.SubwordVocabulary.save", PARTS.save, path=(PATH + ".parts", TEXT)),
    row("data.SubwordVocabulary.load", data.SubwordVocabulary.load, path=(PARTS_PATH, SIZE)),
    row("data.SubwordDropout", data.SubwordDropout, vocabulary=(PARTS, SIZE), rate=(0.1, RATE)),
    row(
        "data.SubwordDropout.draw",
        data.SubwordDropout(PARTS).draw,
        sentences=(SENTENCES, LIST_OF_TEXT | {"[]", "{}"}),
        seed=(3, COUNT),
    ),
    row("data.EpochCounter", data.EpochCounter, epoch=(0, COUNT)),
    row(
        "data.translation_batches",
        data.translation_batches,
        batch_size=(2, SIZE),
        length_multiple=(8, SIZE),
        **BATCHES,
    ),
    row(
        "data.token_batches",
        data.token_batches,
        tokens_per_batch=(64, SIZE),
        length_multiple=(4, SIZE),
        epoch_counter=(None, OPTIONAL),
        **BATCHES,
    ),
    row(
        "data.shard_batches",
        data.shard_batches,
        batches=(New(lambda: data.token_batches(PAIRS, WORDS, WORDS, 16)), SIZE),
        num_shards=(2, SIZE),
        shard=(0, COUNT),
        row_multiple=(1, SIZE),
    ),
    row(
        "data.simcut_batches",
        data.simcut_batches,
        batches=(New(lambda: data.token_batches(PAIRS, WORDS, WORDS, 16)), SIZE),
        source_vocabulary=(WORDS, SIZE),
        target_vocabulary=(WORDS, SIZE),
        rate=(0.1, RATE),
        seed=(3, COUNT),
    ),
    row(
        "data.rdrop_batches",
        data.rdrop_batches,
        batches=(New(lambda: data.token_batches(PAIRS, WORDS, WORDS, 16)), SIZE),
    ),
    row("path", tfattn.path, path=("dense", OPTIONAL)),
    # Weights from elsewhere.
    *[
        row(f"convert.{name}", getattr(convert, name), layer=(layer, SIZE))
        for name, layer in (
            ("from_keras", New(lambda: built(keras.layers.MultiHeadAttention(2, 3)))),
            ("to_keras", New(lambda: built(tfattn.MultiHeadAttention(2, 3)))),
        )
    ],
    *[
        row(
            f"convert.{name}",
            lambda layer, name=name: getattr(convert, name)(layer),
            layer=(None, ALONE),
        )
        for name in ()
    ],
    row(
        "convert.to_torch",
        convert.to_torch,
        layer=(New(lambda: built(tfattn.MultiHeadAttention(2, 2))), SIZE),
    ),
    *[
        row(f"convert.{name}", getattr(convert, name), **{argument: (None, SIZE)}).wrong_alone()
        for name, argument in (
            ("from_keras_hub", "layer"),
            ("to_keras_hub", "layer"),
            ("to_marian", "model"),
        )
    ],
    row(
        "convert.to_ctranslate2",
        convert.to_ctranslate2,
        **SERVED,
        quantization=(None, OPTIONAL),
        max_length=(9, SIZE),
    ).wrong_alone(),
    row("convert.to_onnx", convert.to_onnx, **SERVED).wrong_alone(),
    row("convert.CTranslate2", convert.CTranslate2, folder=(None, SIZE)).wrong_alone(),
    row(
        "convert.from_marian",
        convert.from_marian,
        state=({}, SIZE),
        config=({}, SIZE),
    ).wrong_alone(),
    *[
        row(
            f"convert.{name}",
            getattr(convert, name),
            ids=(IDS, ALONE | WIDE | {"0", "-1", "an axis more", "an axis less", "width 0"}),
            config=({"pad_token_id": 1}, SIZE),
        )
        for name in ("ids_from_marian", "ids_to_marian")
    ],
    row(
        "convert.from_torch",
        convert.from_torch,
        state=(New(lambda: convert.to_torch(built(tfattn.MultiHeadAttention(2, 2)))), SIZE),
        num_heads=(2, SIZE),
        norm_first=(False, FLAG),
        activation=("relu", FUNCTION | OPTIONAL),
        epsilon=(1e-5, POSITIVE),
        dropout=(0.0, RATE),
    ),
    # Training.
    row(
        "MaskedCrossentropy",
        tfattn.MaskedCrossentropy,
        label_smoothing=(0.1, RATE),
        padding_id=(0, COUNT),
        reduction=("sum", OPTIONAL),
    ),
    row("MaskedAccuracy", tfattn.MaskedAccuracy, padding_id=(0, COUNT)),
    row(
        "training.RDropCrossentropy",
        training.RDropCrossentropy,
        weight=(5.0, NON_NEGATIVE),
        label_smoothing=(0.1, RATE),
        padding_id=(0, COUNT),
    ),
    row(
        "training.SimCutCrossentropy",
        training.SimCutCrossentropy,
        weight=(3.0, NON_NEGATIVE),
        label_smoothing=(0.1, RATE),
        padding_id=(0, COUNT),
    ),
    *[
        row(
            f"{cls.__name__}()",
            lambda cls=cls, **a: cls()(**a),
            y_true=(IDS, SIZE),
            y_pred=(LOGITS, WIDE),
            sample_weight=(np.ones((B, T), "float32"), OPTIONAL | NUMBER | {"array of rank 1"}),
        )
        for cls in (
            tfattn.MaskedCrossentropy,
            tfattn.MaskedAccuracy,
            training.RDropCrossentropy,
            training.SimCutCrossentropy,
        )
    ],
    row(
        "TransformerSchedule",
        tfattn.TransformerSchedule,
        width=(4, SIZE),
        warmup_steps=(2, SIZE),
        scale=(1.0, POSITIVE),
    ),
    row(
        "InverseSquareRootSchedule",
        tfattn.InverseSquareRootSchedule,
        peak=(1.0, POSITIVE),
        warmup_steps=(2, SIZE),
    ),
    row(
        "training.Cooldown",
        training.Cooldown,
        schedule=(tfattn.TransformerSchedule(4), SIZE),
        start=(2, COUNT),
        steps=(2, SIZE),
    ),
    row("training.AveragedWeights", training.AveragedWeights, callbacks=([], {"[]"})),
    row("training.FirstProcess", training.FirstProcess, callbacks=([], {"[]"})),
    row("training.TokenLoss", training.TokenLoss, loss=(None, OPTIONAL)),
    row(
        "training.step_cost",
        training.step_cost,
        config=(tfattn.Transformer(8, num_layers=1, width=4, num_heads=2).get_config(), SIZE),
        batch_size=(2, SIZE),
        source_length=(3, SIZE),
        target_length=(5, SIZE),
        data_parallel=(1, SIZE),
        model_parallel=(1, SIZE),
        averages=(2, COUNT),
        number_bytes=(4, SIZE),
    ),
    row(
        "training.transformer_layout",
        training.transformer_layout,
        device_mesh=(MESH, SIZE),
        axis=("model", SIZE),
        shard_vocabulary=(True, FLAG),
    ),
    row("training.Backup", training.Backup, filepath=(PATH + ".npz", TEXT)),
    row(
        "training.BestWeights",
        training.BestWeights,
        filepath=("best.weights.h5", SIZE),
        monitor=("loss", TEXT),
        better=(min, SIZE),
        best=(None, OPTIONAL | {"-1", "0", "1.5", "inf", "NaN"}),
    ),
    row(
        "training.ValidationBleu",
        training.ValidationBleu,
        translate=(lambda model, sources: sources, FUNCTION),
        sources=(["a b", "c"], LIST_OF_TEXT | {"ragged list"}),
        references=(["a b", "c"], LIST_OF_TEXT),
        every=(1, SIZE),
        name=("bleu", TEXT),
    ),
    row(
        "training.corpus_bleu",
        training.corpus_bleu,
        hypotheses=(["a b", "c"], LIST_OF_TEXT),
        references=(["a b", "c"], LIST_OF_TEXT),
    ),
    # Figures.
    row(
        "plot.heatmaps",
        plot.heatmaps,
        matrices=(SQUARE[0], {"booleans in its shape", "an axis more"}),
        row_labels=(list("abc"), OPTIONAL),
        column_labels=(list("abc"), OPTIONAL),
        titles=(None, OPTIONAL | TEXT | {"array of text"}),
        columns=(2, SIZE),
        number_format=(".1f", OPTIONAL),
        colour_map=("viridis", OPTIONAL),
        row_values=(None, OPTIONAL),
        column_values=(None, OPTIONAL),
        centre=(0.0, OPTIONAL | NON_NEGATIVE | {"-1"}),
        ax=(None, OPTIONAL),
    ),
    row(
        "plot.head_grid",
        plot.head_grid,
        weights=(WEIGHTS, ALONE | {"booleans in its shape"}),
        row_labels=(list("abc"), OPTIONAL),
        column_labels=(list("abc"), OPTIONAL),
        title=(None, OPTIONAL | TEXT),
    ),
    row(
        "plot.flow",
        plot.flow,
        weights=(WEIGHTS[0, 0], {"booleans in its shape"}),
        row_labels=(list("abc"), SIZE),
        column_labels=(list("abc"), SIZE),
        title=(None, OPTIONAL | TEXT),
        threshold=(0.05, NON_NEGATIVE),
        ax=(None, OPTIONAL),
    ),
    row(
        "plot.bars",
        plot.bars,
        labels=(["a", "b"], LIST_OF_TEXT | {"ragged list"}),
        series=([1.0, 2.0], SIZE),
        x_label=("x", TEXT),
        y_label=("y", TEXT),
        title=(None, OPTIONAL | TEXT),
        number_format=(".1f", OPTIONAL),
        ax=(None, OPTIONAL),
    ),
    row(
        "plot.beam_tree",
        plot.beam_tree,
        title=(None, OPTIONAL | TEXT),
        ax=(None, OPTIONAL),
        **BEAMS,
    ),
    row("plot.beam_viewer", plot.beam_viewer, title=("a", TEXT), **BEAMS),
    row(
        "plot.curves",
        plot.curves,
        x=([1.0, 2.0], SIZE),
        series=([1.0, 2.0], SIZE),
        x_label=("x", TEXT),
        y_label=("y", TEXT),
        title=(None, OPTIONAL | TEXT),
        log_x=(True, FLAG),
        log_y=(True, FLAG),
        marked=(None, OPTIONAL | {"{}"}),
        ax=(None, OPTIONAL),
    ),
    row(
        "plot.loss_curve",
        plot.loss_curve,
        history=({"loss": [1.0, 0.5]}, {"array of rank 1"}),
        x_label=("x", TEXT),
        y_label=("y", TEXT),
        title=(None, OPTIONAL | TEXT),
        ax=(None, OPTIONAL),
    ),
    row(
        "plot.mask_pictures",
        plot.mask_pictures,
        masks=([masks.causal()], SIZE),
        queries=(3, SIZE),
        keys=(3, OPTIONAL),
        titles=(None, OPTIONAL | {n for n in NONSENSE if "array" in n}),
        columns=(2, SIZE),
    ),
    row(
        "plot.positions",
        plot.positions,
        table=(SQUARE[0], ALONE | WIDE | {"booleans in its shape"}),
        dimensions=([0, 1], SIZE),
        title=(None, OPTIONAL | TEXT),
    ),
    row(
        "plot.regression_fit",
        plot.regression_fit,
        x=([1.0, 2.0], SIZE),
        y=([1.0, 2.0], SIZE),
        queries=([1.0, 2.0], SIZE),
        predictions=([1.0, 2.0], {"{}"}),
        truth=(None, OPTIONAL),
        x_label=("x", TEXT),
        y_label=("y", TEXT),
        title=(None, OPTIONAL | TEXT),
        bands=(None, OPTIONAL | {"{}"}),
        ax=(None, OPTIONAL),
    ),
    row(
        "plot.surface",
        plot.surface,
        x=([1.0, 2.0], SIZE),
        y=([1.0, 2.0], SIZE),
        heights=([[1.0, 2.0], [3.0, 5.0]], SIZE),
        points=(None, OPTIONAL),
        titles=(None, OPTIONAL | {n for n in NONSENSE if "array" in n}),
        x_label=("x", TEXT),
        y_label=("y", TEXT),
        bar_label=("z", TEXT),
        ax=(None, OPTIONAL),
    ),
    row("plot.viewer", plot.viewer, **VIEWER),
    row("plot.save_viewer", plot.save_viewer, path=(PATH + ".html", TEXT), **VIEWER),
    row(
        "plot.Viewer.save",
        lambda path: plot.viewer({"a": WEIGHTS}, list("abc"), list("abc")).save(path),
        path=(PATH + ".html", TEXT),
    ),
]


def arguments_of(row):
    """The right arguments, those that are used up made anew."""
    return {
        name: right.make() if isinstance(right, New) else right for name, right in row.good.items()
    }


def said_of(row, arguments):
    """None where nonsense is refused in the design's form, "taken", or a sentence on what came."""
    try:
        row.call(**arguments)
    except (ValueError, FileNotFoundError) as error:
        form = r"\b[\w.()]+: `([\w.\[\] ]+)` must .+ Received: "
        found = re.search(form, str(error), re.DOTALL)
        if found is None:
            return f"ValueError of another form: {str(error)[:150]!r}"
        # A layer inside names its own argument for ids.
        if re.split(r"[\[ .]", found[1])[0] not in (*arguments, "ids"):
            return f"names another argument: {str(error)[:150]!r}"
        return None
    except ImportError as error:
        return None if "needs keras_hub" in str(error) else f"ImportError: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]!r}"
    return "taken"


def cases(row, argument):
    """(name, nonsense) for an argument."""
    right = row.good[argument]
    right = right.make() if isinstance(right, New) else right
    yield from NONSENSE.items()
    if isinstance(right, np.ndarray):
        for name, bend in BENT.items():
            if right.dtype == bool and name in ("booleans in its shape", "sparse"):
                continue
            value = bend(right)
            if value is not None:
                yield name, value


def wrong_of(row, argument):
    """What is not as it must be, by the name of the nonsense."""
    wrong = {}
    for name, value in cases(row, argument):
        if name in row.kinds[argument]:
            continue
        said = said_of(row, {**arguments_of(row), argument: value})
        if said is not None:
            wrong[name] = said
    return wrong


def enter_a_folder():
    os.chdir(FOLDER)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch):
    monkeypatch.chdir(FOLDER)  # "abc" is a good name for a file


@pytest.mark.filterwarnings("ignore")  # of NumPy and TensorFlow, about what they are asked to cast
@pytest.mark.slow(keep=12)
@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_nonsense_is_refused_by_name(case):
    if not case.alone:
        case.call(**arguments_of(case))
    wrong = {argument: wrong_of(case, argument) for argument in case.good}
    assert {argument: found for argument, found in wrong.items() if found} == {}


def public_callables(module, prefix=""):
    for name in module.__all__:
        found = getattr(module, name)
        if isinstance(found, types.ModuleType):
            yield from public_callables(found, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


# What takes no arguments, or is made by the collection and not by its users.
LEFT_OUT = {
    "biases.Bias",
    "data.Characters",
    "masks.Mask",
    "masks.Grid",
    "plot.Viewer",
    "rules.Rule",
    "scalings.Scaling",
    "smoothing.Band",
    "smoothing.LeaveOneOut",
    "smoothing.kernels.Kernel",
    "training.StepCost",
}


def test_every_public_callable_has_a_row():
    rows = {case.name for case in TABLE}
    short = {name.rpartition(".")[2] for name in rows}
    missing = set(public_callables(tfattn)) - rows - LEFT_OUT
    assert {name for name in missing if name.rpartition(".")[2] not in short} == set()


def test_every_argument_of_a_constructor_has_nonsense():
    """But for what goes to Keras as it is."""
    for case in TABLE:
        owner = getattr(tfattn, case.name, None)
        if inspect.isclass(owner) and "__init__" in vars(owner):
            parameters = inspect.signature(owner.__init__).parameters
            names = {name for name in parameters if name not in ("self", "args", "kwargs")}
            assert names - {"name", "dtype"} <= set(case.good), case.name


# Those that were seen one by one.


def attention_of(query=FLOATS, value=FLOATS, **arguments):
    return tfattn.MultiHeadAttention(H, 2)(query, value, **arguments)


@pytest.mark.parametrize("argument", ["query", "value", "key"])
def test_a_rank_of_one_is_refused_with_the_shapes_that_are_taken(argument):
    with pytest.raises(ValueError, match=rf"`{argument}` must have .*Received: {argument}=\(4,\)"):
        attention_of(**{argument: FLOATS[0, 0]})


@pytest.mark.parametrize("key", [[1.0, 2.0], "abc"])
def test_what_is_no_tensor_is_no_key(key):
    with pytest.raises(ValueError, match=r"MultiHeadAttention: `key` must be a tensor of numbers"):
        attention_of(key=key)


def test_attend_refuses_batches_and_widths_that_disagree():
    with pytest.raises(ValueError, match=r"attend: `key` must have the batch size of `query`, 2"):
        tfattn.attend(FLOATS, FLOATS[:1])
    with pytest.raises(ValueError, match=r"attend: `key` must be as wide as `query`, 4"):
        tfattn.attend(FLOATS, FLOATS[..., :3])


def test_an_empty_batch_goes_with_no_other():
    with pytest.raises(ValueError, match=r"attend: `key` must have the batch size of `query`, 0"):
        tfattn.attend(FLOATS[:0], FLOATS[:1])
    assert tfattn.attend(FLOATS[:0], FLOATS[:0]).shape == (0, T, D)
    assert attention_of(FLOATS[:0], FLOATS[:0]).shape == (0, T, D)


def test_no_tokens_at_all_keep_their_batch():
    assert attention_of(FLOATS[:, :0], FLOATS).shape == (B, 0, D)
    np.testing.assert_array_equal(attention_of(FLOATS, FLOATS[:, :0]), np.zeros((B, T, D)))


@pytest.mark.parametrize("call", [tfattn.attend, attention_of])
def test_a_width_of_none_is_refused(call):
    with pytest.raises(ValueError, match=r"`query` must have at least one feature"):
        call(FLOATS[..., :0], FLOATS[..., :0])


@pytest.mark.parametrize("call", [tfattn.attend, attention_of])
def test_booleans_are_not_multiplied(call):
    with pytest.raises(ValueError, match=r"`query` must be a tensor of numbers.*Received: .*bool"):
        call(FLOATS > 0, FLOATS)


@pytest.mark.tensorflow
@pytest.mark.parametrize("call", [tfattn.attend, attention_of])
def test_ragged_and_sparse_tensors_get_the_recipe(call):
    ragged = tf.RaggedTensor.from_tensor(FLOATS)
    with pytest.raises(ValueError, match=r"`query` must be dense.*to_tensor.*valid_lens"):
        call(ragged, FLOATS)
    with pytest.raises(ValueError, match=r"`value` must be dense.*tf\.sparse\.to_dense"):
        call(FLOATS, tf.sparse.from_dense(FLOATS))


@pytest.mark.skipif(BACKEND == "torch", reason="about sparse inputs, which Keras refuses there")
def test_symbolic_sparse_inputs_get_it_too():
    with pytest.raises(ValueError, match=r"`query` must be dense.*tf\.sparse\.to_dense"):
        attention_of(keras.Input((T, D), sparse=True), keras.Input((T, D)))


@pytest.mark.tensorflow
def test_symbolic_ragged_inputs_get_it_too():
    with pytest.raises(ValueError, match=r"`query` must be dense.*to_tensor"):
        attention_of(keras.Input((T, D), ragged=True), keras.Input((T, D)))


@pytest.mark.parametrize("seed", ["abc", float("nan"), len, -1, 2**63, True])
def test_a_seed_is_looked_at_without_any_dropout(seed):
    for make in (made(tfattn.MultiHeadAttention, num_heads=H, key_dim=2), tfattn.AddNorm):
        refusal = r"`seed` must be (an integer of at least 0|below 2\*\*63)\. Received: seed="
        with pytest.raises(ValueError, match=refusal):
            make(seed=seed)


def test_a_seed_of_numpy_is_one():
    assert type(tfattn.AddNorm(seed=np.int64(7)).seed) is int


def test_json_without_end_is_no_vocabulary(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text('{"words": ' + "[" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match=r"Vocabulary\.load: `path` must name a file that"):
        data.Vocabulary.load(path)


def test_a_number_is_not_taken_for_an_open_file():
    with pytest.raises(ValueError, match=r"Vocabulary\.save: `path` must be a path"):
        WORDS.save(1)


def test_sources_of_none_are_named():
    with pytest.raises(ValueError, match=r"ValidationBleu: `sources` must be a sequence"):
        training.ValidationBleu(lambda model, sources: sources, None, ["a"])
