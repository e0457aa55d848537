"""Bad input whose refusal teaches: relations between arguments, and a way out in the sentence.

Each is a `ValueError` in the design's one form: who, which argument, what was expected, what was
received. That each argument of each callable is checked at all: `test_invalid_arguments.py`.
"""

import functools
import re

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.refusals import HERE, message, table
from tests.helpers.tensors import BACKEND, tf
from tfattn import biases, kernels, masks
from tfattn.decoding import rules

B, T, S, D, V = 2, 3, 7, 5, 11

QUERY, VALUE = np.ones((B, T, D), "float32"), np.ones((B, S, D), "float32")

SAID = "(.+?): `(.+?)` must (.+)"
BLOCK, ENCODER = tfattn.TransformerEncoderBlock(2, 7), "TransformerEncoderBlock"
SCORE = "be a score layer, such as tfattn.AdditiveScore(units=8)"
KERNEL = f"be one of {str(kernels.names())[1:-1]}, or a callable"
FLOAT_MASK = (
    "be boolean, True where attention is allowed "
    "(a float that is added to the scores, such as 0 and -1e9, goes into `bias`)"
)
ZEROS_AND_ONES = "be boolean, or hold 0 and 1, with 1 where attention is allowed"
INT_MASK = "be boolean, True where attention is allowed (0 and 1 become a mask with `mask != 0`)"
SQUARE = "have shape (T, S) or (B, T, S)"
SQUARE_OF_HEADS = "have shape (T, S), (B, T, S) or (B, H, T, S)"
LENGTHS = "have shape (B,) or (B, T)"
KEYS = "have as many tokens as `value`, which has 7"
WIDTH = "be as wide as `query`, 5 (AdditiveScore and BilinearScore take other widths)"
DIVIDE = "divide `width of the inputs`=5 without remainder"
CAUSAL, ALIBI, ROTARY = masks.causal(), biases.alibi(2), tfattn.RotaryPositions()
NO_MEMORY = "be omitted, since the block was built without cross-attention"


def refused(*rows):
    """Rows of (what is done, "who: `argument` must ...", received)."""
    cases = [(act, *re.fullmatch(SAID, said).groups(), received) for act, said, received in rows]
    return table(*cases)


def attention(query=QUERY, value=VALUE, **arguments):
    return lambda: tfattn.DotProductAttention()(query, value, **arguments)


def heads(*sizes, **options):
    return tfattn.MultiHeadAttention(*(sizes or (2, 3)), **options)


def on_heads(**arguments):
    return lambda: heads()(QUERY, VALUE, **arguments)


def attend(*tensors, **options):
    return lambda: tfattn.attend(*tensors, **options)


def encoder_block(num_heads=5, hidden_dim=11, inputs=QUERY, **options):
    return lambda: tfattn.TransformerEncoderBlock(num_heads, hidden_dim, **options)(inputs)


def without_memory():
    block = tfattn.TransformerDecoderBlock(5, 11)
    block.build((B, T, D))
    return block


def with_memory():
    block = tfattn.TransformerDecoderBlock(5, 11)
    block.build((B, T, D), (B, S, D))
    return block


def transformer(**options):
    sizes = {"num_layers": 1, "width": 10, "num_heads": 2, "hidden_dim": 7}
    return lambda: tfattn.Transformer(V, **{**sizes, **options})


def input_of(*shape, dtype="float32"):
    return keras.Input(shape, dtype=dtype)


# Layers, whom the message names, and which argument.
UNKNOWN_WIDTHS = [
    (tfattn.DotProductAttention(), "DotProductScore", "query", input_of(7, 5)),
    (tfattn.Attention(tfattn.SoftCapScore(2.0)), "DotProductScore", "query", input_of(7, None)),
    (tfattn.NadarayaWatson(), "KernelScore", "query", input_of(7, 5)),
    (tfattn.AdditiveAttention(3), "AdditiveScore", "query", input_of(7, 5)),
    (tfattn.BilinearScore(), "BilinearScore", "query", input_of(7, 5)),
    (heads(), "MultiHeadAttention", "query", input_of(7, 5)),
    (tfattn.AttentionPooling(), "AttentionPooling", "value"),
    (tfattn.PositionwiseFeedForward(3), "PositionwiseFeedForward", "inputs"),
    (tfattn.LearnedPositionalEncoding(7), "LearnedPositionalEncoding", "inputs"),
]


@refused(
    # Sizes that a part of a block has already, or that are none.
    (
        lambda: heads(output_shape=()),
        "MultiHeadAttention: `output_shape` must be one or more positive integers",
        (),
    ),
    (
        encoder_block(None),
        "TransformerEncoderBlock: `num_heads` must be passed, unless `attention` is",
        None,
    ),
    (
        encoder_block(3, attention=heads(2, 3)),
        f"{ENCODER}: `num_heads` must match the value of `attention`, 2, or be omitted",
        3,
    ),
    (
        encoder_block(None, attention=heads(dropout=0.2), attention_dropout=0.1),
        "TransformerEncoderBlock: `attention_dropout` must "
        "match the value of `attention`, 0.2, or be omitted",
        0.1,
    ),
    (
        encoder_block(feed_forward=tfattn.PositionwiseFeedForward(7)),
        "TransformerEncoderBlock: `hidden_dim` must "
        "match the value of `feed_forward`, 7, or be omitted",
        11,
    ),
    (
        encoder_block(feed_forward=keras.layers.Dense(5)),
        "TransformerEncoderBlock: `hidden_dim` must be omitted, since `feed_forward` has none",
        11,
    ),
    (
        transformer(num_heads=5, block=BLOCK),
        "TransformerEncoder: `num_heads` must match the value of `block`, 2, or be omitted",
        5,
    ),
    (
        transformer(dropout=0.1, block=BLOCK),
        "TransformerEncoder: `dropout` must match the value of `block`, 0.0, or be omitted",
        0.1,
    ),
    (
        transformer(share_embeddings=True, target_vocabulary_size=13),
        "Transformer: `target_vocabulary_size` must "
        "be `source_vocabulary_size`=11 where embeddings are shared",
        13,
    ),
    # Heads that do not divide.
    (
        lambda: heads(4, 3, num_key_value_heads=3),
        "MultiHeadAttention: `num_key_value_heads` must divide `num_heads`=4 without remainder",
        3,
    ),
    (encoder_block(2), f"TransformerEncoderBlock: `num_heads` must {DIVIDE}", 2),
    (
        transformer(num_heads=3),
        "TransformerEncoder: `num_heads` must divide `width`=10 without remainder",
        3,
    ),
    (
        attend(np.ones((2, 5, 3, 7)), np.ones((2, 3, 11, 7))),
        "attend: `key heads` must divide `query heads`=5 without remainder",
        3,
    ),
    (
        attend(*[keras.KerasTensor((None, None, 3, 7))] * 2),
        "attend: `query` must have a number of heads that is known before the graph runs",
        "(None, None, 3, 7)",
    ),
    # Names, kernels and bandwidths.
    (
        lambda: tfattn.MaskedCrossentropy(reduction="mean"),
        "MaskedCrossentropy: `reduction` must "
        "be one of ('sum_over_batch_size', 'sum', 'none', None)",
        "'mean'",
    ),
    (
        lambda: tfattn.NadarayaWatson("quartic"),
        f"NadarayaWatson: `kernel` must {KERNEL}",
        "'quartic'",
    ),
    (
        lambda: tfattn.KernelScore(bandwidth=[1.0, 0.0]),
        "KernelScore: `bandwidth` must be a positive, finite number",
        0.0,
    ),
    (
        lambda: tfattn.KernelScore(bandwidth=[]),
        "KernelScore: `bandwidth` must hold at least one number",
        "[]",
    ),
    (
        lambda: tfattn.KernelScore(bandwidth=[1.0, 2.0])(QUERY, VALUE),
        "KernelScore: `bandwidth` must be one number, or one per dimension of the keys, 5",
        "[1.0, 2.0]",
    ),
    # What is no part.
    (
        transformer(block="pre-norm"),
        "TransformerEncoder: `block` must "
        "be a block, such as tfattn.TransformerEncoderBlock(8, 2048), or None",
        "'pre-norm'",
    ),
    (
        lambda: heads(score=tfattn.DotProductScore),
        f"MultiHeadAttention: `score` must {SCORE}",
        tfattn.DotProductScore,
    ),
    (
        encoder_block(attention="dot"),
        "TransformerEncoderBlock: `attention` must be a tfattn.MultiHeadAttention, or None",
        "'dot'",
    ),
    (
        lambda: heads(positions="rotary"),
        "MultiHeadAttention: `positions` must "
        "be a HeadPositions layer, or None (add positional encodings to the inputs)",
        "'rotary'",
    ),
    (
        transformer(positions=ROTARY),
        "TransformerEncoder: `positions` must be a positional encoding of the inputs; "
        "for positions within attention pass "
        "`block=...(attention=MultiHeadAttention(positions=...))`",
        ROTARY,
    ),
    (
        lambda: tfattn.complexity(7, 5, kernel_size=1),
        "complexity: `kernel_size` must be an integer of at least 2",
        1,
    ),
    (
        lambda: tfattn.rules.RequiredTokens("ab", per_sentence=True),
        "RequiredTokens: `tokens` must hold a list for each sentence",
        "'ab'",
    ),
)
def test_a_bad_argument_is_refused(act, who, argument, expected, received):
    with pytest.raises(ValueError, match="^" + message(who, argument, expected, received) + "$"):
        act()


@refused(
    # Ranks, lengths, widths.
    (attention(query=QUERY[0]), "DotProductAttention: `query` must have shape (B, T, D)", "(3, 5)"),
    (attention(key=VALUE[:, 1:]), f"DotProductAttention: `key` must {KEYS}", 6),
    (
        attention(value=VALUE[:1]),
        "DotProductAttention: `value` must have the batch size of `query`, 2",
        "(1, 7, 5)",
    ),
    (
        lambda: transformer()()([np.ones((B, S), int), np.ones((1, T), int)]),
        "Transformer: `inputs[1]` must have the batch size of `inputs[0]`, 2",
        "(1, 3)",
    ),
    (attention(value=VALUE[..., :4]), f"DotProductScore: `key width` must {WIDTH}", 4),
    (
        attend(QUERY[0], VALUE),
        "attend: `query` must have shape (B, T, D) or (B, H, T, D)",
        "(3, 5)",
    ),
    (attend(QUERY, VALUE[None]), "attend: `key` must have shape (B, S, D)", "(1, 2, 7, 5)"),
    (attend(QUERY, VALUE, key=VALUE[:, 1:]), f"attend: `key` must {KEYS}", 6),
    (
        attend(np.ones((2, 6, 3, 5)), np.ones((2, 2, 7, 5)), key=np.ones((2, 3, 7, 5))),
        "attend: `value` must have as many heads as `key`, 3",
        "(2, 2, 7, 5)",
    ),
    (
        encoder_block(None, attention=heads(output_shape=13)),
        "TransformerEncoderBlock: `attention` must return the width of the inputs, 5",
        13,
    ),
    (
        encoder_block(hidden_dim=None, feed_forward=keras.layers.Dense(13)),
        "TransformerEncoderBlock: `feed_forward` must return the width of the inputs, 5",
        13,
    ),
    (
        lambda: tfattn.AddNorm()(QUERY, QUERY[..., :4]),
        "AddNorm: `outputs` must be as wide as `inputs`, 5",
        4,
    ),
    (
        lambda: tfattn.LearnedPositionalEncoding(5)(QUERY, start_index=4),
        "LearnedPositionalEncoding: `inputs` must "
        "have at most `max_length`=5 positions, counted from 0",
        7,
    ),
    (
        lambda: tfattn.NadarayaWatson(leave_one_out=True)(QUERY, VALUE),
        "NadarayaWatson: `query` must have as many tokens as `key`, which has 7",
        3,
    ),
    (
        lambda: tfattn.CausalLM(V, 1, 4, 2).encode([[4, 5, 6]], max_length=2),
        "CausalLM: `prompt` must have at most `max_length`=2 tokens",
        "(1, 3)",
    ),
    # A memory, which a block has from the first call on or never.
    (
        lambda: without_memory()(QUERY, VALUE),
        f"TransformerDecoderBlock: `memory` must {NO_MEMORY}",
        "(2, 7, 5)",
    ),
    (
        lambda: with_memory()(QUERY),
        "TransformerDecoderBlock: `memory` must be passed, since the block was built with a memory",
        None,
    ),
    *(
        (
            lambda name=name: without_memory()(QUERY, **{name: "anything"}),
            f"TransformerDecoderBlock: `{name}` must be omitted without `memory`",
            "'anything'",
        )
        for name in ("memory_mask", "memory_attention_mask", "valid_lens")
    ),
    (
        lambda: without_memory().new_cache(VALUE, 3),
        f"TransformerDecoderBlock: `memory` must {NO_MEMORY}",
        "(2, 7, 5)",
    ),
    (
        lambda: with_memory().new_cache(max_length=3, batch_size=2),
        "TransformerDecoderBlock: `memory` must be passed, since the block was built with a memory",
        None,
    ),
    (
        lambda: without_memory().new_cache(max_length=3),
        "TransformerDecoderBlock: `batch_size` must be passed",
        None,
    ),
    (
        lambda: with_memory().new_cache(VALUE, 3, 2),
        "TransformerDecoderBlock: `batch_size` must be omitted with `memory`",
        2,
    ),
    (
        lambda: with_memory().new_cache(VALUE),
        "TransformerDecoderBlock: `max_length` must be a positive integer",
        None,
    ),
    # Masks.
    (
        attention(attention_mask=np.full((T, S), 2, "int32")),
        f"DotProductAttention: `attention_mask` must {ZEROS_AND_ONES}",
        2,
    ),
    (
        attention(attention_mask=np.ones((B, S), bool)),
        f"DotProductAttention: `attention_mask` must {SQUARE}{HERE}",
        "(2, 7)",
    ),
    (
        on_heads(attention_mask=np.ones((B, 5, T, S), bool)),
        f"MultiHeadAttention: `attention_mask` must {SQUARE_OF_HEADS}{HERE}",
        "(2, 5, 3, 7)",
    ),
    (
        attention(attention_mask=np.ones((B, 1, T, S), bool)),
        f"DotProductAttention: `attention_mask` must {SQUARE}",
        "(2, 1, 3, 7)",
    ),
    (
        attention(attention_mask=masks.causal() & np.ones((T, 13), bool)),
        f"DotProductAttention: `attention_mask` must {SQUARE}{HERE}",
        "(3, 13)",
    ),
    (
        attention(attention_mask=masks.padding(np.array([1, 2, 3]))),
        f"DotProductAttention: `attention_mask` must {LENGTHS}{HERE}",
        "(3,)",
    ),
    (
        attention(key_mask=np.ones((B, S), "float32")),
        f"DotProductAttention: `key_mask` must {INT_MASK}",
        "'float32'",
    ),
    (
        attention(query_mask=np.ones((B, S), bool)),
        f"DotProductAttention: `query_mask` must have shape of one entry per token{HERE}",
        "(2, 7)",
    ),
    (
        attention(value_mask=np.ones((B, S, 1), bool)),
        "DotProductAttention: `value_mask` must have shape (2, 7), one entry per token",
        "(2, 7, 1)",
    ),
    # Lengths.
    (
        attention(valid_lens=np.ones((B, S), int)),
        f"DotProductAttention: `valid_lens` must {LENGTHS}{HERE}",
        "(2, 7)",
    ),
    (attention(valid_lens=3), f"DotProductAttention: `valid_lens` must {LENGTHS}", "()"),
    # Biases.
    (
        attention(bias=np.ones((B, S), "float32")),
        f"DotProductAttention: `bias` must {SQUARE}{HERE}",
        "(2, 7)",
    ),
    (
        attention(bias=biases.alibi(3)),
        "DotProductAttention: `bias` must have as many heads as the scores, 1",
        "'alibi(3)'",
    ),
    (
        on_heads(bias=biases.alibi(1)),
        "MultiHeadAttention: `bias` must have as many heads as the scores, 2",
        "'alibi(1)'",
    ),
    (
        on_heads(bias=biases.explicit(np.ones((B, S), "float32"))),
        f"MultiHeadAttention: `bias` must {SQUARE_OF_HEADS}{HERE}",
        "(2, 7)",
    ),
    (
        on_heads(bias=CAUSAL),
        "MultiHeadAttention: `bias` must be numbers or a bias object (pass a mask as the mask)",
        CAUSAL,
    ),
    (
        on_heads(attention_mask=ALIBI),
        "MultiHeadAttention: `attention_mask` must "
        "be boolean or a mask object (a bias is not a mask)",
        ALIBI,
    ),
)
def test_a_bad_tensor_is_refused(act, who, argument, expected, received):
    with pytest.raises(ValueError, match=message(who, argument, expected, received)):
        act()


@refused(
    (
        lambda: masks.explicit(np.ones((T, S), "float32")),
        f"masks.explicit: `mask` must {FLOAT_MASK}",
        "'float32'",
    ),
    (
        lambda: masks.causal() & np.ones((T, S), "float32"),
        f"masks.explicit: `mask` must {FLOAT_MASK}",
        "'float32'",
    ),
    (
        lambda: tfattn.masked_softmax(np.ones((B, T, S)), mask=np.ones((T, S), "float32")),
        f"masked_softmax: `mask` must {FLOAT_MASK}",
        "'float32'",
    ),
    (
        lambda: masks.explicit(np.full((T, S), -1, "int32")),
        f"masks.explicit: `mask` must {ZEROS_AND_ONES}",
        -1,
    ),
    (
        lambda: masks.explicit(np.ones(S, bool)),
        f"masks.explicit: `mask` must {SQUARE_OF_HEADS}",
        "(7,)",
    ),
    (
        lambda: masks.padding(np.array([1.5], "float32")),
        "masks.padding: `valid_lens` must hold integers",
        "'float32'",
    ),
    (lambda: masks.padding(3), f"masks.padding: `valid_lens` must {LENGTHS}", "()"),
    (
        lambda: masks.segments(np.ones(3, int)),
        "masks.segments: `query_segments` must have shape (B, T) or (B, S)",
        "(3,)",
    ),
    (
        lambda: tfattn.masked_softmax(np.ones((T, S))),
        "masked_softmax: `scores` must have shape (B, T, S) or (B, H, T, S)",
        "(3, 7)",
    ),
)
def test_a_bad_mask_is_refused(act, who, argument, expected, received):
    with pytest.raises(ValueError, match="^" + message(who, argument, expected, received) + "$"):
        act()


# What counts as 0 or False in Python is no way to leave an argument of Keras's out.
@pytest.mark.parametrize(
    "values, expected",
    [
        ([False, True, 1.0, "1", (), (1, None)], "be one or more integers"),
        ([0, -1, (0, 1), [2, 2]], "name axes once, between the batch, 0, and the features, -1"),
    ],
)
def test_axes_are_not_confused_with_their_absence(values, expected):
    for value in values:
        sentence = message("MultiHeadAttention", "attention_axes", expected, repr(value))
        with pytest.raises(ValueError, match="^" + sentence + "$"):
            heads(attention_axes=value)


def test_an_argument_that_nobody_knows_is_refused_as_keras_does():
    with pytest.raises(
        ValueError,
        match="Unrecognized keyword arguments passed to MultiHeadAttention: {'head_size': 3}",
    ):
        heads(head_size=3)


# Where a shape is known before there are numbers, the refusal comes then.


@refused(
    (
        attention(input_of(D), input_of(S, D)),
        "DotProductAttention: `query` must have shape (B, T, D)",
        "(None, 5)",
    ),
    (
        attention(input_of(T, D), input_of(S, D), key=input_of(6, D)),
        f"DotProductAttention: `key` must {KEYS}",
        6,
    ),
    (attention(input_of(T, D), input_of(S, 4)), f"DotProductScore: `key width` must {WIDTH}", 4),
    (
        lambda: heads()(input_of(T, D), input_of(S, D), attention_mask=input_of(T, dtype="bool")),
        f"MultiHeadAttention: `attention_mask` must {SQUARE_OF_HEADS}{HERE}",
        "(None, 3)",
    ),
    (
        attention(input_of(T, D), input_of(S, D), attention_mask=input_of(T, S)),
        f"DotProductAttention: `attention_mask` must {FLOAT_MASK}",
        "'float32'",
    ),
    (
        attention(input_of(T, D), input_of(S, D), valid_lens=input_of(13, dtype="int32")),
        f"DotProductAttention: `valid_lens` must {LENGTHS}{HERE}",
        "(None, 13)",
    ),
    (
        attention(input_of(T, D), input_of(S, D), valid_lens=input_of()),
        "DotProductAttention: `valid_lens` must hold integers",
        "'float32'",
    ),
    (
        attention(input_of(T, D), input_of(S, D), bias=biases.alibi(5)),
        "DotProductAttention: `bias` must have as many heads as the scores, 1",
        "'alibi(5)'",
    ),
    (
        encoder_block(2, inputs=input_of(T, D)),
        f"TransformerEncoderBlock: `num_heads` must {DIVIDE}",
        2,
    ),
    (
        lambda: tfattn.NadarayaWatson(leave_one_out=True)(input_of(T, D), input_of(S, D)),
        "NadarayaWatson: `query` must have as many tokens as `key`, which has 7",
        3,
    ),
    (
        lambda: tfattn.LearnedPositionalEncoding(2)(input_of(T, D)),
        "LearnedPositionalEncoding: `inputs` must "
        "have at most `max_length`=2 positions, counted from 0",
        3,
    ),
    *[
        (
            functools.partial(layer, input_of(3, None), *others),
            f"{who}: `{argument}` must have a last axis of known size",
            "(None, 3, None)",
        )
        for layer, who, argument, *others in UNKNOWN_WIDTHS
    ],
    (
        lambda: tfattn.attend(*[keras.KerasTensor((2, 3, None))] * 2),
        "attend: `query` must have a last axis of known size",
        "(2, 3, None)",
    ),
)
def test_a_bad_shape_is_refused_symbolically_too(act, who, argument, expected, received):
    sentence = message(who, argument, expected, received)
    if BACKEND != "tensorflow":  # where Keras traces unknown sizes by names or numbers of its own
        sentence = sentence.replace("None", r"(None|\w+)")
    with pytest.raises(ValueError, match=sentence):
        act()


@pytest.mark.parametrize(
    "base",
    [masks.Mask, biases.Bias, tfattn.scalings.Scaling, rules.Rule, tfattn.Score, tfattn.Attention],
    ids=lambda base: base.__name__,
)
def test_an_argument_that_is_not_kept_has_no_config(base):
    class Own(base):
        def __init__(self, size, *args, step=1, **kwargs):
            super().__init__(*args, **kwargs)
            self.size = size

    class Whole(Own):
        def get_config(self):
            return {"size": self.size, "step": 1}

    expected = "be kept as an attribute of its name, or `get_config` be overridden"
    with pytest.raises(ValueError, match=message("Own", "step", expected, "'no attribute'")):
        Own(3, step=2).get_config()
    assert Whole(3).get_config() == {"size": 3, "step": 1}


def test_a_block_asks_for_a_width_that_is_known():
    refusal = r"TransformerEncoderBlock: `inputs` must .+\. Received: inputs="
    with pytest.raises(ValueError, match=refusal):
        encoder_block(2, inputs=input_of(None, None))()


def test_lengths_that_differ_within_the_residual_are_refused():
    with pytest.raises(ValueError, match=r"AddNorm: `outputs` must .+\. Received: outputs="):
        tfattn.AddNorm()(QUERY, VALUE)


def test_a_start_index_for_each_row_has_one_for_each_row():
    refusal = r"SinusoidalPositionalEncoding: `start_index` must .+\. Received: start"
    with pytest.raises(ValueError, match=refusal):
        tfattn.SinusoidalPositionalEncoding()(QUERY, start_index=np.array([1, 2, 3]))


@pytest.mark.tensorflow
@pytest.mark.parametrize("call", [tfattn.attend, lambda *tokens: heads()(*tokens)])
def test_ragged_inputs_are_refused_with_the_recipe(call):
    ragged = tf.ragged.constant([[[1.0, 2.0], [3.0, 4.0]], [[1.0, 1.0]]], ragged_rank=1)
    with pytest.raises(ValueError, match=r"`query` must be dense.*to_tensor.*valid_lens"):
        call(ragged, ragged)
    with pytest.raises(ValueError, match=r"`value` must be dense.*tf\.sparse\.to_dense"):
        call(QUERY, tf.sparse.from_dense(VALUE))
