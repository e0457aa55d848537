"""The conformance table: at least one row for each public layer and model.

All test files in this folder use all rows, so a new layer only needs a new row. Sizes are distinct
primes (B 2, T 3, S 7, widths 5, 11, 13), or products of primes for widths that heads divide, so
that swapped axes are found. As in Sonnet's conformance tests.
"""

import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest

import tfattn
from tfattn import masks

SIZES = {"B": 2, "T": 3, "S": 7}
HEADS = 5


class Tokens(NamedTuple):
    """One input: float `(B, length, width)`, or ids `(B, length)` below `vocabulary`, with 0 as
    padding.
    """

    length: str
    width: int | None = None
    vocabulary: int | None = None

    def array(self, generator, sizes):
        shape = (sizes["B"], sizes[self.length])
        if self.width is not None:
            return generator.normal(size=(*shape, self.width)).astype("float32")
        ids = generator.integers(1, self.vocabulary, size=shape).astype("int32")
        ids[-1, -1] = 0
        return ids

    def shape(self, sizes):
        """The shape without the batch."""
        return (
            (sizes.get(self.length),)
            if self.width is None
            else (sizes.get(self.length), self.width)
        )

    @property
    def dtype(self):
        return "int32" if self.width is None else "float32"


class Row(NamedTuple):
    """One layer or model: constructor, inputs, output shape.

    `kind` is "attention" (takes the call arguments of every attention layer), "score", "layer", or
    "model". `output` and `weights` are shapes, letters for sizes that vary. `pair` means that the
    inputs come as one tuple.
    """

    name: str
    make: Callable
    inputs: tuple
    output: tuple
    kind: str = "layer"
    weights: tuple = ()
    options: tuple = ()
    pair: bool = False

    @property
    def cls(self):
        return type(self.make())

    def new(self, seed=0, sizes=SIZES, nudge=True, **options):
        """The layer, built by a first call; `nudge` changes initial weights, which may be zeros."""
        keras.utils.set_random_seed(seed)
        layer = self.make(**options)
        self.call(layer, self.arrays(seed, sizes))
        if nudge:
            shift(layer, seed)
        return layer

    def shared(self, dtype="float32"):
        """One layer for all tests that do not change it, to save time."""
        return _shared(self.name, dtype)

    def arrays(self, seed=0, sizes=SIZES):
        generator = np.random.default_rng(seed)
        return [tokens.array(generator, sizes) for tokens in self.inputs]

    def call(self, layer, inputs, **options):
        inputs = (tuple(inputs),) if self.pair else inputs
        return layer(*inputs, **dict(self.options), **options)

    def symbols(self, sizes=None, batch=None):
        """Symbolic inputs, of unknown length unless `sizes` is passed."""
        return [
            keras.Input(
                tokens.shape(sizes or {}), batch_size=batch, dtype=tokens.dtype, name=f"input_{i}"
            )
            for i, tokens in enumerate(self.inputs)
        ]

    def model(self, layer, **options):
        """A functional model around the layer, for inputs of any length."""
        symbols = self.symbols()
        return keras.Model(
            symbols[0] if len(symbols) == 1 else symbols, self.call(layer, symbols, **options)
        )

    def shape(self, letters, sizes=SIZES):
        return tuple(sizes.get(letter, letter) for letter in letters)


@functools.cache
def _shared(name, dtype):
    return row_of(name).new(dtype=dtype)


def shift(layer, seed=0, size=0.3):
    generator = np.random.default_rng(seed + 1)
    for weight in layer.trainable_weights:
        weight.assign(weight + size * generator.normal(size=weight.shape).astype("float32"))


def _attention(
    name,
    make,
    query=5,
    value=11,
    key=5,
    output=None,
    weights=("B", "T", "S"),
    query_length="T",
    options=(),
):
    """A row for an attention layer, with three widths if its score allows."""
    inputs = (Tokens(query_length, query), Tokens("S", value), Tokens("S", key))
    shape = ("B", query_length, output or value)
    return Row(name, make, inputs, shape, "attention", (weights,), options)


def _score(name, make, query=5, key=5):
    return Row(name, make, (Tokens("T", query), Tokens("S", key)), ("B", "T", "S"), "score")


def _over(score):
    """A constructor of `Attention` with a new score."""
    return lambda **options: tfattn.Attention(score=score(), **options)


def _heads(**arguments):
    """A constructor of `MultiHeadAttention` with new sublayers."""

    def make(**options):
        names = ("score", "positions", "normalizer")
        parts = {name: arguments[name]() for name in names if name in arguments}
        made = {**arguments, **parts}
        return tfattn.MultiHeadAttention(**{"num_heads": HEADS, "key_dim": 2, **made, **options})

    return make


def _multi_head(name, output=11, **arguments):
    weights = ("B", arguments.get("num_heads", HEADS), "T", "S")
    make = _heads(**arguments)
    return _attention(name, make, query=11, value=13, key=7, output=output, weights=weights)


def _with(cls, **arguments):
    return lambda **options: cls(**{**arguments, **options})


def _of_parts(block, **arguments):
    """A block without default sublayers; each call makes new sublayers."""

    def make(**options):
        parts = {
            "attention": _heads(
                value_dim=3,
                num_key_value_heads=1,
                dropout=0.3,
                positions=tfattn.RotaryPositions,
            )(),
            "feed_forward": tfattn.GatedFeedForward(13, dropout=0.3),
            "norm": keras.layers.RMSNormalization(epsilon=1e-5),
        }
        return block(**{**parts, **arguments, **options})

    return make


_STACK = {"num_layers": 1, "width": 10, "num_heads": HEADS, "hidden_dim": 11}


def _pre_norm():
    """A stack of pre-norm blocks that share key heads."""
    block = tfattn.TransformerDecoderBlock(
        hidden_dim=11,
        norm_first=True,
        attention=tfattn.MultiHeadAttention(HEADS, 2, num_key_value_heads=1),
    )
    return {"num_layers": 1, "width": 10, "block": block}


_RECURRENT = {"vocabulary_size": 17, "width": 5, "units": 11}
_OVER_HEADS = ("B", HEADS, "T", "S")
_SELF = ("B", HEADS, "T", "T")

ROWS = (
    _attention("Attention[dot]", _over(tfattn.DotProductScore)),
    _attention("Attention[additive]", _over(lambda: tfattn.AdditiveScore(units=13)), key=7),
    _attention("Attention[bilinear]", _over(tfattn.BilinearScore), key=7),
    _attention("Attention[cosine]", _over(lambda: tfattn.CosineScore(temperature=0.5))),
    _attention("Attention[kernel]", _over(lambda: tfattn.KernelScore("gaussian", bandwidth=2.0))),
    _attention(
        "Attention[learned cosine]",
        _over(lambda: tfattn.CosineScore(temperature=0.5, trainable_temperature=True)),
    ),
    _attention("Attention[normalized dot]", _over(tfattn.NormalizedDotProductScore)),
    _attention(
        "Attention[soft cap]",
        _over(lambda: tfattn.SoftCapScore(1.5, tfattn.AdditiveScore(units=13))),
        key=7,
    ),
    _attention(
        "Attention[sink]",
        lambda **options: tfattn.Attention(normalizer=tfattn.AttentionSinks("ones"), **options),
    ),
    _attention(
        "Attention[sparsemax]",
        lambda **options: tfattn.Attention(normalizer=tfattn.Sparsemax(), **options),
    ),
    _attention("DotProductAttention", _with(tfattn.DotProductAttention, scale=0.7, dropout=0.3)),
    _attention(
        "AdditiveAttention", _with(tfattn.AdditiveAttention, units=13, dropout=0.3, seed=3), key=7
    ),
    _attention("BilinearAttention", _with(tfattn.BilinearAttention, dropout=0.3), key=7),
    _multi_head("MultiHeadAttention"),
    _multi_head(
        "MultiHeadAttention[additive]", score=lambda: tfattn.AdditiveScore(units=3), dropout=0.3
    ),
    _multi_head(
        "MultiHeadAttention[kernel]",
        score=lambda: tfattn.KernelScore("gaussian", bandwidth=2.0, trainable_bandwidth=True),
    ),
    _multi_head("MultiHeadAttention[grouped]", num_heads=2 * HEADS, num_key_value_heads=HEADS),
    _multi_head(
        "MultiHeadAttention[rotary]",
        key_dim=5,
        positions=lambda: tfattn.RotaryPositions(rotary_dim=4, scaling=tfattn.scalings.llama3(2.0)),
    ),
    _multi_head("MultiHeadAttention[alibi]", positions=tfattn.AlibiPositions),
    _multi_head(
        "MultiHeadAttention[sinks]",
        normalizer=tfattn.AttentionSinks,
        score=lambda: tfattn.SoftCapScore(2.0),
        num_key_value_heads=1,
        dropout=0.3,
    ),
    _multi_head(
        "MultiHeadAttention[sparsemax]",
        normalizer=tfattn.Sparsemax,
        score=tfattn.NormalizedDotProductScore,
    ),
    _multi_head("MultiHeadAttention[top k]", normalizer=lambda: tfattn.TopKSoftmax(3), dropout=0.3),
    _multi_head(
        "MultiHeadAttention[relative]",
        positions=lambda: tfattn.RelativePositionBias(num_buckets=8, max_distance=6),
    ),
    _multi_head(
        "MultiHeadAttention[widths]",
        value_dim=3,
        output_shape=17,
        use_bias=False,
        seed=3,
        dropout=0.3,
        output=17,
    ),
    _multi_head(
        "MultiHeadAttention[gate]", use_gate=True, num_key_value_heads=1, flash_attention=False
    ),
    _attention(
        "NadarayaWatson[gaussian]",
        _with(tfattn.NadarayaWatson, bandwidth=[1.3, 2.1], trainable_bandwidth=True),
        query=2,
        key=2,
    ),
    _attention(
        "NadarayaWatson[epanechnikov]",
        _with(
            tfattn.NadarayaWatson, kernel="epanechnikov", bandwidth=2.5, trainable_bandwidth=True
        ),
        query=2,
        key=2,
    ),
    _attention(
        "NadarayaWatson[leave_one_out]",
        _with(
            tfattn.NadarayaWatson,
            bandwidth=1.5,
            leave_one_out=True,
            dropout=0.3,
            trainable_bandwidth=True,
        ),
        query=2,
        key=2,
        query_length="S",
        weights=("B", "S", "S"),
    ),
    Row(
        "AttentionPooling",
        tfattn.AttentionPooling,
        (Tokens("S", 11),),
        ("B", 11),
        weights=(("B", 1, "S"),),
    ),
    Row(
        "AttentionPooling[heads]",
        lambda **options: tfattn.AttentionPooling(
            3,
            attention=_heads(score=lambda: tfattn.AdditiveScore(units=3), dropout=0.3)(),
            **options,
        ),
        (Tokens("S", 11), Tokens("S", 7)),
        ("B", 3, 7),
        weights=(("B", HEADS, 3, "S"),),
    ),
    _score("DotProductScore", _with(tfattn.DotProductScore, scale=0.7)),
    _score("AdditiveScore", _with(tfattn.AdditiveScore, units=13), key=11),
    _score("BilinearScore", tfattn.BilinearScore, key=11),
    _score("CosineScore", _with(tfattn.CosineScore, temperature=0.5)),
    _score("NormalizedDotProductScore", _with(tfattn.NormalizedDotProductScore, scale=0.7)),
    _score("SoftCapScore", _with(tfattn.SoftCapScore, cap=0.9)),
    _score(
        "KernelScore",
        _with(tfattn.KernelScore, bandwidth=[1.0, 1.5, 2.0, 2.5, 3.0], trainable_bandwidth=True),
    ),
    Row(
        "SinusoidalPositionalEncoding",
        _with(tfattn.SinusoidalPositionalEncoding, input_scale=3.0),
        (Tokens("T", 11),),
        ("B", "T", 11),
        options=(("start_index", 2),),
    ),
    Row(
        "LearnedPositionalEncoding",
        _with(tfattn.LearnedPositionalEncoding, max_length=13),
        (Tokens("T", 11),),
        ("B", "T", 11),
        options=(("start_index", 2),),
    ),
    Row(
        "AddNorm",
        _with(tfattn.AddNorm, dropout=0.3),
        (Tokens("T", 11), Tokens("T", 11)),
        ("B", "T", 11),
    ),
    Row(
        "AddNorm[pre-norm]",
        _with(tfattn.AddNorm, norm_first=True),
        (Tokens("T", 11), Tokens("T", 11)),
        ("B", "T", 11),
    ),
    Row(
        "AddNorm[RMS]",
        lambda **options: tfattn.AddNorm(
            norm=keras.layers.RMSNormalization(epsilon=1e-5), **options
        ),
        (Tokens("T", 11), Tokens("T", 11)),
        ("B", "T", 11),
    ),
    Row(
        "PositionwiseFeedForward",
        _with(
            tfattn.PositionwiseFeedForward,
            hidden_dim=13,
            output_dim=5,
            activation="gelu",
            dropout=0.3,
        ),
        (Tokens("T", 11),),
        ("B", "T", 5),
    ),
    Row(
        "GatedFeedForward",
        _with(tfattn.GatedFeedForward, hidden_dim=13, output_dim=5, dropout=0.3),
        (Tokens("T", 11),),
        ("B", "T", 5),
    ),
    Row(
        "TransformerEncoderBlock",
        _with(
            tfattn.TransformerEncoderBlock,
            num_heads=HEADS,
            hidden_dim=11,
            dropout=0.3,
            attention_dropout=0.2,
        ),
        (Tokens("T", 10),),
        ("B", "T", 10),
        weights=(_SELF,),
    ),
    Row(
        "TransformerEncoderBlock[pre-norm]",
        lambda **options: tfattn.TransformerEncoderBlock(
            attention=_heads(score=lambda: tfattn.AdditiveScore(units=3))(),
            hidden_dim=11,
            norm_first=True,
            **options,
        ),
        (Tokens("T", 10),),
        ("B", "T", 10),
        weights=(_SELF,),
    ),
    Row(
        "TransformerEncoderBlock[parts]",
        _of_parts(tfattn.TransformerEncoderBlock),
        (Tokens("T", 11),),
        ("B", "T", 11),
        weights=(_SELF,),
    ),
    Row(
        "TransformerDecoderBlock",
        _with(tfattn.TransformerDecoderBlock, num_heads=HEADS, hidden_dim=11, dropout=0.3),
        (Tokens("T", 10), Tokens("S", 13)),
        ("B", "T", 10),
        weights=(_SELF, _OVER_HEADS),
    ),
    Row(
        "TransformerDecoderBlock[pre-norm]",
        lambda **options: tfattn.TransformerDecoderBlock(
            attention=_heads(num_key_value_heads=1)(), hidden_dim=11, norm_first=True, **options
        ),
        (Tokens("T", 10), Tokens("S", 13)),
        ("B", "T", 10),
        weights=(_SELF, _OVER_HEADS),
    ),
    Row(
        "TransformerDecoderBlock[without memory]",
        _of_parts(tfattn.TransformerDecoderBlock, norm_first=True),
        (Tokens("T", 11),),
        ("B", "T", 11),
        weights=(_SELF,),
    ),
    Row(
        "TransformerEncoder",
        _with(tfattn.TransformerEncoder, vocabulary_size=17, **{**_STACK, "num_layers": 2}),
        (Tokens("T", vocabulary=17),),
        ("B", "T", 10),
    ),
    Row(
        "TransformerEncoder[learned]",
        lambda **options: tfattn.TransformerEncoder(
            vocabulary_size=17,
            positions=tfattn.LearnedPositionalEncoding(max_length=13),
            **_STACK,
            **options,
        ),
        (Tokens("T", vocabulary=17),),
        ("B", "T", 10),
    ),
    Row(
        "TransformerDecoder",
        lambda **options: tfattn.TransformerDecoder(vocabulary_size=17, **_pre_norm(), **options),
        (Tokens("T", vocabulary=17), Tokens("S", 13)),
        ("B", "T", 10),
    ),
    Row(
        "Transformer",
        _with(tfattn.Transformer, source_vocabulary_size=17, target_vocabulary_size=19, **_STACK),
        (Tokens("S", vocabulary=17), Tokens("T", vocabulary=19)),
        ("B", "T", 19),
        "model",
        pair=True,
    ),
    Row(
        "Transformer[shared]",
        lambda **options: tfattn.Transformer(17, share_embeddings=True, **_pre_norm(), **options),
        (Tokens("S", vocabulary=17), Tokens("T", vocabulary=17)),
        ("B", "T", 17),
        "model",
        pair=True,
    ),
    Row(
        "CausalLM",
        _with(tfattn.CausalLM, vocabulary_size=17, **_STACK),
        (Tokens("T", vocabulary=17),),
        ("B", "T", 17),
        "model",
    ),
    Row(
        "CausalLM[not tied]",
        lambda **options: tfattn.CausalLM(17, tie_embeddings=False, **_pre_norm(), **options),
        (Tokens("T", vocabulary=17),),
        ("B", "T", 17),
        "model",
    ),
    Row(
        "RecurrentEncoder",
        _with(tfattn.RecurrentEncoder, **_RECURRENT),
        (Tokens("T", vocabulary=17),),
        ("B", "T", 11),
    ),
    Row(
        "RecurrentEncoder[bidirectional]",
        _with(
            tfattn.RecurrentEncoder,
            **{
                **_RECURRENT,
                "num_layers": 2,
                "cell": keras.layers.LSTMCell,
                "bidirectional": True,
                "dropout": 0.3,
            },
        ),
        (Tokens("T", vocabulary=17),),
        ("B", "T", 22),
    ),
    Row(
        "RecurrentDecoder",
        _with(tfattn.RecurrentDecoder, **_RECURRENT),
        (Tokens("T", vocabulary=17), Tokens("S", 13)),
        ("B", "T", 5),
        weights=(("B", "T", "S"),),
    ),
    Row(
        "RecurrentDecoder[bilinear]",
        lambda **options: tfattn.RecurrentDecoder(
            score=tfattn.BilinearScore(),
            **{
                **_RECURRENT,
                "num_layers": 2,
                "cell": keras.layers.LSTMCell,
                "dropout": 0.3,
                **options,
            },
        ),
        (Tokens("T", vocabulary=17), Tokens("S", 13)),
        ("B", "T", 5),
        weights=(("B", "T", "S"),),
    ),
    Row(
        "BahdanauSeq2Seq",
        _with(
            tfattn.BahdanauSeq2Seq,
            source_vocabulary_size=17,
            target_vocabulary_size=19,
            width=5,
            units=11,
        ),
        (Tokens("S", vocabulary=17), Tokens("T", vocabulary=19)),
        ("B", "T", 19),
        "model",
        pair=True,
    ),
    Row(
        "BahdanauSeq2Seq[shared]",
        lambda **options: tfattn.BahdanauSeq2Seq(
            17,
            width=5,
            units=11,
            bidirectional=False,
            share_embeddings=True,
            score=tfattn.DotProductScore(scale=1.0),
            **options,
        ),
        (Tokens("S", vocabulary=17), Tokens("T", vocabulary=17)),
        ("B", "T", 17),
        "model",
        pair=True,
    ),
)


@functools.cache
def first_of_each_class():
    """One row per class, for slow tests."""
    return {row.cls: row for row in reversed(ROWS)}.values()


OF_A_CLASS = tuple(row for row in ROWS if row in first_of_each_class())
# Sublayers of the models, which compute nothing that a model's row does not.
INSIDE = {"TransformerEncoder", "TransformerDecoder", "RecurrentEncoder", "RecurrentDecoder"}
# Attention whose numbers are computed by code that no other row of its class runs: a score, a
# normalizer, positions, groups, a kernel of compact support, a mask of the layer's own.
OF_A_KIND = {
    "Attention[additive]",
    "Attention[cosine]",
    "Attention[kernel]",
    "Attention[soft cap]",
    "Attention[sparsemax]",
    "MultiHeadAttention[additive]",
    "MultiHeadAttention[grouped]",
    "MultiHeadAttention[rotary]",
    "MultiHeadAttention[sinks]",
    "MultiHeadAttention[top k]",
    "MultiHeadAttention[relative]",
    "MultiHeadAttention[gate]",
    "NadarayaWatson[epanechnikov]",
    "NadarayaWatson[leave_one_out]",
}
ATTENTION = tuple(row for row in ROWS if row.kind == "attention")
# For contracts about numbers: one row per class and per kind of computation.
NUMERIC = tuple(row for row in ATTENTION if row in OF_A_CLASS or row.name in OF_A_KIND)


def row_of(name):
    return next(row for row in SAVED if row.name == name)


def numbers(tensor):
    """The array as NumPy's, without half precision."""
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def _masked(name, title, rule):
    """A copy of a row with a mask object in its call."""
    row = next(row for row in ROWS if row.name == name)
    return row._replace(
        name=f"{name} under {title}", options=(*row.options, ("attention_mask", rule))
    )


_LOCAL = masks.causal() & masks.window(2)
_JOINED = masks.prefix(1) | ~masks.window(1) & masks.padding([2, 7])

# Models for saving tests: every row, and models with mask objects inside.
SAVED = (
    *ROWS,
    _masked("Attention[dot]", "causal & window", _LOCAL),
    _masked("MultiHeadAttention", "causal & window", _LOCAL),
    _masked("Attention[dot]", "prefix | ~window & padding", _JOINED),
)


def named(rows):
    """Arguments of `pytest.mark.parametrize`, with ids of rows; one row per class is quick."""
    quick = {row.name for row in first_of_each_class()}
    marks = [pytest.mark.quick if row.name in quick else () for row in rows]
    params = zip(rows, marks, strict=True)
    return {
        "argnames": "row",
        "argvalues": [pytest.param(row, id=row.name, marks=mark) for row, mark in params],
    }


def public_layers():
    """All public layers and models, without abstract classes."""
    found = (getattr(tfattn, name) for name in tfattn.__all__)
    layers = [
        thing for thing in found if inspect.isclass(thing) and issubclass(thing, keras.layers.Layer)
    ]
    # Positions within attention and normalizers are tested in attention layers.
    return [
        cls
        for cls in layers
        if cls is not tfattn.Score
        and not issubclass(cls, (tfattn.HeadPositions, tfattn.Normalizer))
    ]
