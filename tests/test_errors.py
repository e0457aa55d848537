"""Bad input: each a `ValueError` in the design's one form, who, which argument, what was expected,
what was received.

AdditiveAttention: `units` must be a positive integer. Received: units=0
"""

import keras
import numpy as np
import pytest

import tfattn
from tests.refusals import HERE, message, table
from tests.tensors import BACKEND, tf
from tfattn import kernels, masks

B, T, S, D, V = 2, 3, 7, 5, 11

QUERY, VALUE = np.ones((B, T, D), "float32"), np.ones((B, S, D), "float32")

POSITIVE_INT = "be a positive integer"
POSITIVE = "be a positive, finite number"
RATE = "be a number in [0, 1)"
FLAG = "be True or False"
BLOCK = tfattn.TransformerEncoderBlock(2, 7)
SCORE = "be a score layer, such as tfattn.AdditiveScore(units=8)"
KERNEL = f"be one of {str(kernels.names())[1:-1]}, or a callable"
FLOAT_MASK = (
    "be boolean, True where attention is allowed "
    "(a float that is added to the scores, such as 0 and -1e9, goes into `bias`)"
)
ZEROS_AND_ONES = "be boolean, or hold 0 and 1, with 1 where attention is allowed"
INT_MASK = "be boolean, True where attention is allowed (0 and 1 become a mask with `mask != 0`)"


def attention(**arguments):
    return lambda: tfattn.DotProductAttention()(
        arguments.pop("query", QUERY), arguments.pop("value", VALUE), **arguments
    )


def heads(*sizes, **options):
    return lambda: tfattn.MultiHeadAttention(*(sizes or (2, 3)), **options)


def regression(**options):
    return lambda: tfattn.NadarayaWatson(**options)


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


def language_model(**options):
    sizes = {"num_layers": 1, "width": 10, "num_heads": 2, "hidden_dim": 7}
    return tfattn.CausalLM(V, **{**sizes, **options})


@table(
    # Sizes.
    (heads(0, 3), "MultiHeadAttention", "num_heads", POSITIVE_INT, 0),
    (heads(-2, 3), "MultiHeadAttention", "num_heads", POSITIVE_INT, -2),
    (heads(2.0, 3), "MultiHeadAttention", "num_heads", POSITIVE_INT, 2.0),
    (heads(True, 3), "MultiHeadAttention", "num_heads", POSITIVE_INT, True),
    (heads(2, None), "MultiHeadAttention", "key_dim", POSITIVE_INT, None),
    (heads(2, 3, value_dim=0), "MultiHeadAttention", "value_dim", POSITIVE_INT, 0),
    (heads(output_shape=0), "MultiHeadAttention", "output_shape", POSITIVE_INT, 0),
    (heads(output_shape=(2, 0)), "MultiHeadAttention", "output_shape", POSITIVE_INT, 0),
    (
        heads(output_shape=()),
        "MultiHeadAttention",
        "output_shape",
        "be a positive integer, or some of them",
        (),
    ),
    (heads(use_bias=1), "MultiHeadAttention", "use_bias", FLAG, 1),
    (lambda: tfattn.AdditiveAttention(units=0), "AdditiveAttention", "units", POSITIVE_INT, 0),
    (lambda: tfattn.AdditiveScore(units="8"), "AdditiveScore", "units", POSITIVE_INT, "'8'"),
    (
        lambda: tfattn.PositionwiseFeedForward(0),
        "PositionwiseFeedForward",
        "hidden_dim",
        POSITIVE_INT,
        0,
    ),
    (
        lambda: tfattn.PositionwiseFeedForward(3, 0),
        "PositionwiseFeedForward",
        "output_dim",
        POSITIVE_INT,
        0,
    ),
    (
        lambda: tfattn.LearnedPositionalEncoding(0),
        "LearnedPositionalEncoding",
        "max_length",
        POSITIVE_INT,
        0,
    ),
    (encoder_block(0), "TransformerEncoderBlock", "num_heads", POSITIVE_INT, 0),
    (encoder_block(hidden_dim=-1), "TransformerEncoderBlock", "hidden_dim", POSITIVE_INT, -1),
    (
        encoder_block(None),
        "TransformerEncoderBlock",
        "num_heads",
        "be given, or else `attention`",
        None,
    ),
    (
        lambda: tfattn.TransformerDecoderBlock(5),
        "TransformerDecoderBlock",
        "hidden_dim",
        "be given, or else `feed_forward`",
        None,
    ),
    # Sizes that a part of a block has already.
    (
        lambda: encoder_block(3, attention=heads(2, 3)())(),
        "TransformerEncoderBlock",
        "num_heads",
        "be 2, as `attention` has it, or not be given",
        3,
    ),
    (
        lambda: encoder_block(None, attention=heads(dropout=0.2)(), attention_dropout=0.1)(),
        "TransformerEncoderBlock",
        "attention_dropout",
        "be 0.2, as `attention` has it, or not be given",
        0.1,
    ),
    (
        lambda: encoder_block(feed_forward=tfattn.PositionwiseFeedForward(7))(),
        "TransformerEncoderBlock",
        "hidden_dim",
        "be 7, as `feed_forward` has it, or not be given",
        11,
    ),
    (
        lambda: encoder_block(feed_forward=keras.layers.Dense(5))(),
        "TransformerEncoderBlock",
        "hidden_dim",
        "be None, as `feed_forward` has it, or not be given",
        11,
    ),
    (
        lambda: tfattn.TransformerEncoder(0),
        "TransformerEncoder",
        "vocabulary_size",
        POSITIVE_INT,
        0,
    ),
    (
        lambda: tfattn.TransformerDecoder(V, num_layers=0),
        "TransformerDecoder",
        "num_layers",
        POSITIVE_INT,
        0,
    ),
    (lambda: tfattn.CausalLM(0), "CausalLM", "vocabulary_size", POSITIVE_INT, 0),
    (
        lambda: language_model().encode([[4]], max_length=0),
        "CausalLM",
        "max_length",
        POSITIVE_INT,
        0,
    ),
    (lambda: masks.window(0), "masks.window", "size", POSITIVE_INT, 0),
    (lambda: masks.prefix(-1), "masks.prefix", "length", "be an integer of at least 0", -1),
    # Heads that do not divide.
    (
        heads(4, 3, num_key_value_heads=3),
        "MultiHeadAttention",
        "num_key_value_heads",
        "divide `num_heads`=4 without remainder",
        3,
    ),
    (heads(num_key_value_heads=0), "MultiHeadAttention", "num_key_value_heads", POSITIVE_INT, 0),
    (
        encoder_block(2),
        "TransformerEncoderBlock",
        "num_heads",
        "divide `width of the inputs`=5 without remainder",
        2,
    ),
    (
        lambda: tfattn.TransformerDecoderBlock(3, 7)(QUERY, VALUE),
        "TransformerDecoderBlock",
        "num_heads",
        "divide `width of the inputs`=5 without remainder",
        3,
    ),
    (
        transformer(num_heads=3),
        "TransformerEncoder",
        "num_heads",
        "divide `width`=10 without remainder",
        3,
    ),
    (
        lambda: tfattn.attend(np.ones((2, 5, 3, 7)), np.ones((2, 3, 11, 7))),
        "attend",
        "key heads",
        "divide `query heads`=5 without remainder",
        3,
    ),
    (
        lambda: tfattn.attend(*[keras.KerasTensor((None, None, 3, 7))] * 2),
        "attend",
        "query",
        "have a number of heads that is known before the graph runs",
        "(None, None, 3, 7)",
    ),
    # Rates.
    (lambda: tfattn.DotProductAttention(dropout=1.0), "DotProductAttention", "dropout", RATE, 1.0),
    (heads(dropout=-0.1), "MultiHeadAttention", "dropout", RATE, -0.1),
    (heads(dropout="0.1"), "MultiHeadAttention", "dropout", RATE, "'0.1'"),
    (heads(dropout=float("nan")), "MultiHeadAttention", "dropout", RATE, "nan"),
    (regression(dropout=1), "NadarayaWatson", "dropout", RATE, 1),
    (lambda: tfattn.AddNorm(dropout=1.0), "AddNorm", "dropout", RATE, 1.0),
    (
        lambda: tfattn.PositionwiseFeedForward(3, dropout=1.0),
        "PositionwiseFeedForward",
        "dropout",
        RATE,
        1.0,
    ),
    (encoder_block(dropout=1.0), "TransformerEncoderBlock", "dropout", RATE, 1.0),
    (
        encoder_block(attention_dropout=1.0),
        "TransformerEncoderBlock",
        "attention_dropout",
        RATE,
        1.0,
    ),
    (transformer(dropout=1.0), "TransformerEncoder", "dropout", RATE, 1.0),
    (lambda: tfattn.attend(QUERY, VALUE, dropout=1.0), "attend", "dropout", RATE, 1.0),
    (
        lambda: tfattn.MaskedCrossentropy(label_smoothing=1.0),
        "MaskedCrossentropy",
        "label_smoothing",
        RATE,
        1.0,
    ),
    # Numbers and flags.
    (lambda: tfattn.DotProductAttention(scale=0), "DotProductAttention", "scale", POSITIVE, 0),
    (lambda: tfattn.DotProductScore(scale=-1.0), "DotProductScore", "scale", POSITIVE, -1.0),
    (lambda: tfattn.CosineScore(temperature=0.0), "CosineScore", "temperature", POSITIVE, 0.0),
    (lambda: tfattn.GatedFeedForward(0), "GatedFeedForward", "hidden_dim", POSITIVE_INT, 0),
    (lambda: tfattn.GatedFeedForward(3, 0), "GatedFeedForward", "output_dim", POSITIVE_INT, 0),
    (
        lambda: tfattn.GatedFeedForward(3, dropout=1.0),
        "GatedFeedForward",
        "dropout",
        RATE,
        1.0,
    ),
    (
        lambda: tfattn.GatedFeedForward(3, use_bias="no"),
        "GatedFeedForward",
        "use_bias",
        FLAG,
        "'no'",
    ),
    (lambda: tfattn.AddNorm(epsilon=0), "AddNorm", "epsilon", POSITIVE, 0),
    (lambda: tfattn.AddNorm(norm_first="pre"), "AddNorm", "norm_first", FLAG, "'pre'"),
    (encoder_block(norm_first=None), "TransformerEncoderBlock", "norm_first", FLAG, None),
    (transformer(share_embeddings=1), "Transformer", "share_embeddings", FLAG, 1),
    (
        transformer(share_embeddings=True, target_vocabulary_size=13),
        "Transformer",
        "target_vocabulary_size",
        "be `source_vocabulary_size`=11 where embeddings are shared",
        13,
    ),
    (
        lambda: tfattn.SinusoidalPositionalEncoding(input_scale=0),
        "SinusoidalPositionalEncoding",
        "input_scale",
        POSITIVE,
        0,
    ),
    (
        lambda: tfattn.SinusoidalPositionalEncoding(max_wavelength=-1.0),
        "SinusoidalPositionalEncoding",
        "max_wavelength",
        POSITIVE,
        -1.0,
    ),
    (lambda: tfattn.TransformerSchedule(0), "TransformerSchedule", "width", POSITIVE_INT, 0),
    (
        lambda: tfattn.TransformerSchedule(5, 0),
        "TransformerSchedule",
        "warmup_steps",
        POSITIVE_INT,
        0,
    ),
    (lambda: tfattn.TransformerSchedule(5, scale=0), "TransformerSchedule", "scale", POSITIVE, 0),
    (
        lambda: tfattn.MaskedAccuracy(padding_id=-1),
        "MaskedAccuracy",
        "padding_id",
        "be an integer of at least 0",
        -1,
    ),
    (
        lambda: tfattn.MaskedCrossentropy(padding_id=0.5),
        "MaskedCrossentropy",
        "padding_id",
        "be an integer of at least 0",
        0.5,
    ),
    (
        lambda: tfattn.MaskedCrossentropy(reduction="mean"),
        "MaskedCrossentropy",
        "reduction",
        "be one of ('sum_over_batch_size', 'sum', 'none', None)",
        "'mean'",
    ),
    # Kernels and bandwidths.
    (regression(kernel="quartic"), "NadarayaWatson", "kernel", KERNEL, "'quartic'"),
    (regression(kernel=None), "NadarayaWatson", "kernel", KERNEL, None),
    (regression(kernel=["gaussian"]), "NadarayaWatson", "kernel", KERNEL, "['gaussian']"),
    (lambda: tfattn.KernelScore("quartic"), "KernelScore", "kernel", KERNEL, "'quartic'"),
    (lambda: kernels.get("quartic"), "kernels.get", "kernel", KERNEL, "'quartic'"),
    (regression(bandwidth=0), "NadarayaWatson", "bandwidth", POSITIVE, 0),
    (regression(bandwidth=-1.0), "NadarayaWatson", "bandwidth", POSITIVE, -1.0),
    (regression(bandwidth=float("inf")), "NadarayaWatson", "bandwidth", POSITIVE, "inf"),
    (regression(bandwidth="wide"), "NadarayaWatson", "bandwidth", POSITIVE, "'wide'"),
    (lambda: tfattn.KernelScore(bandwidth=[1.0, 0.0]), "KernelScore", "bandwidth", POSITIVE, 0.0),
    (
        lambda: tfattn.KernelScore(bandwidth=["wide"]),
        "KernelScore",
        "bandwidth",
        POSITIVE,
        "'wide'",
    ),
    (
        lambda: tfattn.KernelScore(bandwidth=[]),
        "KernelScore",
        "bandwidth",
        "hold at least one number",
        "[]",
    ),
    (
        lambda: tfattn.KernelScore(bandwidth=[1.0, 2.0])(QUERY, VALUE),
        "KernelScore",
        "bandwidth",
        "be one number, or one a dimension of the keys, 5",
        "[1.0, 2.0]",
    ),
    (regression(trainable_bandwidth=1), "NadarayaWatson", "trainable_bandwidth", FLAG, 1),
    (regression(leave_one_out=None), "NadarayaWatson", "leave_one_out", FLAG, None),
    (
        lambda: tfattn.NadarayaWatsonRegressor("quartic"),
        "NadarayaWatsonRegressor",
        "kernel",
        KERNEL,
        "'quartic'",
    ),
    (
        lambda: tfattn.NadarayaWatsonRegressor(bandwidth=0),
        "NadarayaWatsonRegressor",
        "bandwidth",
        POSITIVE,
        0,
    ),
    # Blocks, and what they have themselves.
    (
        lambda: tfattn.Transformer(V, block="pre-norm"),
        "TransformerEncoder",
        "block",
        "be a block, such as tfattn.TransformerEncoderBlock(8, 2048), or None",
        "'pre-norm'",
    ),
    (
        transformer(num_heads=5, block=BLOCK),
        "TransformerEncoder",
        "num_heads",
        "be 2, as `block` has it, or not be given",
        5,
    ),
    (
        transformer(dropout=0.1, block=BLOCK),
        "TransformerEncoder",
        "dropout",
        "be 0.0, as `block` has it, or not be given",
        0.1,
    ),
    (
        lambda: language_model(hidden_dim=8, block=BLOCK),
        "TransformerDecoder",
        "hidden_dim",
        "be 7, as `block` has it, or not be given",
        8,
    ),
    (lambda: language_model(tie_embeddings=0), "CausalLM", "tie_embeddings", FLAG, 0),
    # What is no score.
    (lambda: tfattn.Attention(score="dot"), "Attention", "score", SCORE, "'dot'"),
    (
        heads(score=tfattn.DotProductScore),
        "MultiHeadAttention",
        "score",
        SCORE,
        tfattn.DotProductScore,
    ),
    # What is no part.
    (
        encoder_block(attention="dot"),
        "TransformerEncoderBlock",
        "attention",
        "be a tfattn.MultiHeadAttention, or None",
        "'dot'",
    ),
    (
        encoder_block(feed_forward="relu"),
        "TransformerEncoderBlock",
        "feed_forward",
        "be a layer, or None",
        "'relu'",
    ),
    (
        encoder_block(norm=keras.layers.RMSNormalization),
        "TransformerEncoderBlock",
        "norm",
        "be a layer, or None",
        keras.layers.RMSNormalization,
    ),
    (
        heads(positions="rotary"),
        "MultiHeadAttention",
        "positions",
        "be a HeadPositions layer, or None (what is added to inputs stands before)",
        "'rotary'",
    ),
    (lambda: tfattn.AddNorm(norm="rms"), "AddNorm", "norm", "be a layer, or None", "'rms'"),
)
def test_a_bad_argument_is_refused(act, who, argument, expected, received):
    with pytest.raises(ValueError, match="^" + message(who, argument, expected, received) + "$"):
        act()


KEYS = "have as many tokens as `value`, which has 7"
WIDTH = "be as wide as `query`, 5 (AdditiveScore and BilinearScore take other widths)"


@pytest.mark.slow(keep=1)
@table(
    # Ranks, lengths, widths.
    (attention(query=QUERY[0]), "DotProductAttention", "query", "have shape (B, T, D)", "(3, 5)"),
    (
        attention(query=QUERY[None]),
        "DotProductAttention",
        "query",
        "have shape (B, T, D)",
        "(1, 2, 3, 5)",
    ),
    (attention(value=VALUE[0]), "DotProductAttention", "value", "have shape (B, S, D)", "(7, 5)"),
    (
        attention(key=VALUE[0]),
        "DotProductAttention",
        "key",
        "have shape (B, S, D) "
        "(the order is query, value, key; lengths are passed as `valid_lens=`)",
        "(7, 5)",
    ),
    (attention(key=VALUE[:, 1:]), "DotProductAttention", "key", KEYS, 6),
    (
        attention(value=VALUE[:1]),
        "DotProductAttention",
        "value",
        "have the batch size of `query`, 2",
        "(1, 7, 5)",
    ),
    (attention(value=VALUE[..., :4]), "DotProductScore", "key width", WIDTH, 4),
    (
        lambda: tfattn.Attention(tfattn.CosineScore())(QUERY, VALUE[..., :4]),
        "CosineScore",
        "key width",
        WIDTH,
        4,
    ),
    (lambda: tfattn.NadarayaWatson()(QUERY, VALUE[..., :4]), "KernelScore", "key width", WIDTH, 4),
    (
        lambda: tfattn.attend(QUERY[0], VALUE),
        "attend",
        "query",
        "have shape (B, T, D) or (B, H, T, D)",
        "(3, 5)",
    ),
    (
        lambda: tfattn.attend(QUERY, VALUE[None]),
        "attend",
        "key",
        "have shape (B, S, D)",
        "(1, 2, 7, 5)",
    ),
    (lambda: tfattn.attend(QUERY, VALUE, VALUE[:, 1:]), "attend", "key", KEYS, 6),
    (
        lambda: tfattn.attend(np.ones((2, 6, 3, 5)), np.ones((2, 2, 7, 5)), np.ones((2, 3, 7, 5))),
        "attend",
        "value",
        "have as many heads as `key`, 3",
        "(2, 2, 7, 5)",
    ),
    (
        encoder_block(inputs=QUERY[0]),
        "TransformerEncoderBlock",
        "inputs",
        "have shape (B, T, D)",
        "(3, 5)",
    ),
    (
        lambda: encoder_block(None, attention=heads(output_shape=13)())(),
        "TransformerEncoderBlock",
        "attention",
        "give back the width of the inputs, 5",
        13,
    ),
    (
        lambda: encoder_block(hidden_dim=None, feed_forward=keras.layers.Dense(13))(),
        "TransformerEncoderBlock",
        "feed_forward",
        "give back the width of the inputs, 5",
        13,
    ),
    (
        lambda: without_memory()(QUERY, VALUE),
        "TransformerDecoderBlock",
        "memory",
        "not be given: the block was built without one, and has no cross-attention",
        "(2, 7, 5)",
    ),
    (
        lambda: with_memory()(QUERY),
        "TransformerDecoderBlock",
        "memory",
        "be given: the block was built with one",
        None,
    ),
    *(
        (
            lambda name=name: without_memory()(QUERY, **{name: "anything"}),
            "TransformerDecoderBlock",
            name,
            "not be given without `memory`",
            "'anything'",
        )
        for name in ("memory_mask", "memory_attention_mask", "valid_lens")
    ),
    (
        lambda: without_memory().new_cache(VALUE, 3),
        "TransformerDecoderBlock",
        "memory",
        "not be given: the block was built without one, and has no cross-attention",
        "(2, 7, 5)",
    ),
    (
        lambda: with_memory().new_cache(max_length=3, batch_size=2),
        "TransformerDecoderBlock",
        "memory",
        "be given: the block was built with one",
        None,
    ),
    (
        lambda: without_memory().new_cache(max_length=3),
        "TransformerDecoderBlock",
        "batch_size",
        "be given",
        None,
    ),
    (
        lambda: with_memory().new_cache(VALUE, 3, 2),
        "TransformerDecoderBlock",
        "batch_size",
        "not be given beside `memory`",
        2,
    ),
    (
        lambda: with_memory().new_cache(VALUE),
        "TransformerDecoderBlock",
        "max_length",
        POSITIVE_INT,
        None,
    ),
    (
        lambda: tfattn.AddNorm()(QUERY, QUERY[..., :4]),
        "AddNorm",
        "outputs",
        "be as wide as `inputs`, 5",
        4,
    ),
    (
        lambda: tfattn.SinusoidalPositionalEncoding()(QUERY[0]),
        "SinusoidalPositionalEncoding",
        "inputs",
        "have shape (B, T, D)",
        "(3, 5)",
    ),
    (
        lambda: tfattn.SinusoidalPositionalEncoding()(QUERY, start_index=-1),
        "SinusoidalPositionalEncoding",
        "start_index",
        "be an integer of at least 0",
        -1,
    ),
    (
        lambda: tfattn.LearnedPositionalEncoding(2)(QUERY),
        "LearnedPositionalEncoding",
        "inputs",
        "have at most `max_length`=2 positions, counted from 0",
        3,
    ),
    (
        lambda: tfattn.LearnedPositionalEncoding(5)(QUERY, start_index=4),
        "LearnedPositionalEncoding",
        "inputs",
        "have at most `max_length`=5 positions, counted from 0",
        7,
    ),
    (
        lambda: tfattn.NadarayaWatson(leave_one_out=True)(QUERY, VALUE),
        "NadarayaWatson",
        "query",
        "have as many tokens as `key`, which has 7",
        3,
    ),
    # Masks.
    (
        attention(attention_mask=np.ones((T, S), "float32")),
        "DotProductAttention",
        "attention_mask",
        FLOAT_MASK,
        "'float32'",
    ),
    (
        attention(attention_mask=np.full((T, S), 2, "int32")),
        "DotProductAttention",
        "attention_mask",
        ZEROS_AND_ONES,
        2,
    ),
    (
        attention(attention_mask=np.ones((B, S), bool)),
        "DotProductAttention",
        "attention_mask",
        "have shape (T, S) or (B, T, S)" + HERE,
        "(2, 7)",
    ),
    (
        attention(attention_mask=np.ones((S, T), bool)),
        "DotProductAttention",
        "attention_mask",
        "have shape (T, S) or (B, T, S)" + HERE,
        "(7, 3)",
    ),
    (
        lambda: tfattn.MultiHeadAttention(11, 3)(
            QUERY, VALUE, attention_mask=np.ones((B, 5, T, S), bool)
        ),
        "MultiHeadAttention",
        "attention_mask",
        "have shape (T, S), (B, T, S) or (B, H, T, S)" + HERE,
        "(2, 5, 3, 7)",
    ),
    (
        attention(attention_mask=np.ones((B, 1, T, S), bool)),
        "DotProductAttention",
        "attention_mask",
        "have shape (T, S) or (B, T, S)",
        "(2, 1, 3, 7)",
    ),
    (
        attention(key_mask=np.ones((B, S), "float32")),
        "DotProductAttention",
        "key_mask",
        INT_MASK,
        "'float32'",
    ),
    (
        attention(key_mask=np.ones((B, T), bool)),
        "DotProductAttention",
        "key_mask",
        "have shape of one entry a token" + HERE,
        "(2, 3)",
    ),
    (
        attention(value_mask=np.ones((B, S, 1), bool)),
        "DotProductAttention",
        "value_mask",
        "have shape (2, 7), one entry a token",
        "(2, 7, 1)",
    ),
    (
        attention(query_mask=np.ones((B, S), bool)),
        "DotProductAttention",
        "query_mask",
        "have shape of one entry a token" + HERE,
        "(2, 7)",
    ),
    (
        attention(attention_mask=masks.explicit(np.ones((4, 9), bool))),
        "DotProductAttention",
        "attention_mask",
        "have shape (T, S) or (B, T, S)" + HERE,
        "(4, 9)",
    ),
    (
        attention(attention_mask=masks.causal() & np.ones((T, 13), bool)),
        "DotProductAttention",
        "attention_mask",
        "have shape (T, S) or (B, T, S)" + HERE,
        "(3, 13)",
    ),
    (
        attention(attention_mask=masks.padding(np.array([1, 2, 3]))),
        "DotProductAttention",
        "attention_mask",
        "have shape (B,) or (B, T)" + HERE,
        "(3,)",
    ),
    # Lengths.
    (
        attention(valid_lens=np.array([1, 2, 3])),
        "DotProductAttention",
        "valid_lens",
        "have shape (B,) or (B, T)" + HERE,
        "(3,)",
    ),
    (
        attention(valid_lens=np.ones((B, S), int)),
        "DotProductAttention",
        "valid_lens",
        "have shape (B,) or (B, T)" + HERE,
        "(2, 7)",
    ),
    (
        attention(valid_lens=np.array([1.0, 2.0])),
        "DotProductAttention",
        "valid_lens",
        "hold integers",
        "'float32'",
    ),
    (
        attention(valid_lens=3),
        "DotProductAttention",
        "valid_lens",
        "have shape (B,) or (B, T)",
        "()",
    ),
    # Prompts.
    (
        lambda: language_model().encode([4, 5]),
        "CausalLM",
        "prompt",
        "have shape (B, P)",
        "(2,)",
    ),
    (
        lambda: language_model().encode([[4, 5, 6]], max_length=2),
        "CausalLM",
        "prompt",
        "have at most `max_length`=2 tokens",
        "(1, 3)",
    ),
    # Bias.
    (
        attention(bias=np.ones((B, S), "float32")),
        "DotProductAttention",
        "bias",
        "have shape (T, S) or (B, T, S)" + HERE,
        "(2, 7)",
    ),
    (
        lambda: tfattn.attend(QUERY, VALUE, bias=np.ones((B, S), "float32")),
        "attend",
        "bias",
        "have shape (T, S) or (B, T, S)" + HERE,
        "(2, 7)",
    ),
    (
        attention(bias=tfattn.biases.alibi(3)),
        "DotProductAttention",
        "bias",
        "have as many heads as the scores, 1",
        "'alibi(3)'",
    ),
    (
        lambda: tfattn.MultiHeadAttention(2, 3)(QUERY, VALUE, bias=tfattn.biases.alibi(1)),
        "MultiHeadAttention",
        "bias",
        "have as many heads as the scores, 2",
        "'alibi(1)'",
    ),
    (
        lambda: tfattn.MultiHeadAttention(2, 3)(
            QUERY, VALUE, bias=tfattn.biases.explicit(np.ones((B, S), "float32"))
        ),
        "MultiHeadAttention",
        "bias",
        "have shape (T, S), (B, T, S) or (B, H, T, S)" + HERE,
        "(2, 7)",
    ),
)
def test_a_bad_tensor_is_refused(act, who, argument, expected, received):
    with pytest.raises(ValueError, match=message(who, argument, expected, received)):
        act()


@table(
    (
        lambda: tfattn.masked_softmax(np.ones((T, S))),
        "masked_softmax",
        "scores",
        "have shape (B, T, S) or (B, H, T, S)",
        "(3, 7)",
    ),
    (
        lambda: tfattn.masked_softmax(np.ones((B, T, S)), valid_lens=np.array([1, 2, 3])),
        "masked_softmax",
        "valid_lens",
        "have shape (B,) or (B, T)" + HERE,
        "(3,)",
    ),
    (
        lambda: tfattn.masked_softmax(
            np.ones((B, T, S)), valid_lens=np.array([1.0, 2.0], "float32")
        ),
        "masked_softmax",
        "valid_lens",
        "hold integers",
        "'float32'",
    ),
    (
        lambda: tfattn.masked_softmax(np.ones((B, T, S)), mask=np.ones((T, S), "float32")),
        "masked_softmax",
        "mask",
        FLOAT_MASK,
        "'float32'",
    ),
    (
        lambda: tfattn.masked_softmax(np.ones((B, T, S)), mask=np.ones((B, S), bool)),
        "masked_softmax",
        "mask",
        "have shape (T, S) or (B, T, S)" + HERE,
        "(2, 7)",
    ),
    (
        lambda: masks.explicit(np.ones((T, S), "float32")),
        "masks.explicit",
        "mask",
        FLOAT_MASK,
        "'float32'",
    ),
    (
        lambda: masks.explicit(np.full((T, S), -1, "int32")),
        "masks.explicit",
        "mask",
        ZEROS_AND_ONES,
        -1,
    ),
    (
        lambda: masks.explicit(np.ones(S, bool)),
        "masks.explicit",
        "mask",
        "have shape (T, S), (B, T, S) or (B, H, T, S)",
        "(7,)",
    ),
    (
        lambda: masks.padding(np.array([1.5], "float32")),
        "masks.padding",
        "valid_lens",
        "hold integers",
        "'float32'",
    ),
    (lambda: masks.padding(3), "masks.padding", "valid_lens", "have shape (B,) or (B, T)", "()"),
    (
        lambda: masks.segments(np.ones(3, int)),
        "masks.segments",
        "query_segments",
        "have shape (B, T) or (B, S)",
        "(3,)",
    ),
    (lambda: masks.prefix(1.5), "masks.prefix", "length", "be an integer of at least 0", 1.5),
    (
        lambda: masks.causal() & np.ones((T, S), "float32"),
        "masks.explicit",
        "mask",
        FLOAT_MASK,
        "'float32'",
    ),
)
def test_a_bad_mask_is_refused(act, who, argument, expected, received):
    with pytest.raises(ValueError, match="^" + message(who, argument, expected, received) + "$"):
        act()


# What counts as 0 or False in Python is no way to leave an argument of Keras's out.
@pytest.mark.parametrize(
    "argument, values, expected",
    [
        (
            "attention_axes",
            [False, True, 1.0, "1", (), (1, None)],
            "be an integer, or some of them",
        ),
        (
            "attention_axes",
            [0, -1, (0, 1), [2, 2]],
            "name axes once, between the batch, 0, and the features, -1",
        ),
        ("sliding_window", [0, False, True, -3, 2.0], POSITIVE_INT),
        ("flash_attention", [0, 1, "auto"], FLAG),
        ("use_gate", [0, 1, None], FLAG),
    ],
)
def test_an_argument_of_keras_is_not_confused_with_its_absence(argument, values, expected):
    for value in values:
        pattern = "^" + message("MultiHeadAttention", argument, expected, repr(value)) + "$"
        with pytest.raises(ValueError, match=pattern):
            tfattn.MultiHeadAttention(2, 3, **{argument: value})


def test_an_argument_that_nobody_knows_is_refused_as_keras_does():
    with pytest.raises(
        ValueError,
        match="Unrecognized keyword arguments passed to MultiHeadAttention: {'head_size': 3}",
    ):
        tfattn.MultiHeadAttention(2, 3, head_size=3)


# Where a shape is known before there are numbers, the refusal comes then.


@table(
    (
        lambda: tfattn.DotProductAttention()(keras.Input((D,)), keras.Input((S, D))),
        "DotProductAttention",
        "query",
        "have shape (B, T, D)",
        "(None, 5)",
    ),
    (
        lambda: tfattn.DotProductAttention()(
            keras.Input((T, D)), keras.Input((S, D)), keras.Input((6, D))
        ),
        "DotProductAttention",
        "key",
        KEYS,
        6,
    ),
    (
        lambda: tfattn.DotProductAttention()(keras.Input((T, D)), keras.Input((S, 4))),
        "DotProductScore",
        "key width",
        WIDTH,
        4,
    ),
    (
        lambda: tfattn.MultiHeadAttention(2, 3)(
            keras.Input((T, D)), keras.Input((S, D)), attention_mask=keras.Input((T,), dtype="bool")
        ),
        "MultiHeadAttention",
        "attention_mask",
        "have shape (T, S), (B, T, S) or (B, H, T, S)" + HERE,
        "(None, 3)",
    ),
    (
        lambda: tfattn.MultiHeadAttention(2, 3)(
            keras.Input((T, D)), keras.Input((S, D)), attention_mask=keras.Input((T, S))
        ),
        "MultiHeadAttention",
        "attention_mask",
        FLOAT_MASK,
        "'float32'",
    ),
    (
        lambda: tfattn.DotProductAttention()(
            keras.Input((T, D)), keras.Input((S, D)), valid_lens=keras.Input((13,), dtype="int32")
        ),
        "DotProductAttention",
        "valid_lens",
        "have shape (B,) or (B, T)" + HERE,
        "(None, 13)",
    ),
    (
        lambda: tfattn.DotProductAttention()(
            keras.Input((T, D)), keras.Input((S, D)), valid_lens=keras.Input(())
        ),
        "DotProductAttention",
        "valid_lens",
        "hold integers",
        "'float32'",
    ),
    (
        encoder_block(2, inputs=keras.Input((T, D))),
        "TransformerEncoderBlock",
        "num_heads",
        "divide `width of the inputs`=5 without remainder",
        2,
    ),
    (
        lambda: tfattn.NadarayaWatson(leave_one_out=True)(keras.Input((T, D)), keras.Input((S, D))),
        "NadarayaWatson",
        "query",
        "have as many tokens as `key`, which has 7",
        3,
    ),
    (
        lambda: tfattn.LearnedPositionalEncoding(2)(keras.Input((T, D))),
        "LearnedPositionalEncoding",
        "inputs",
        "have at most `max_length`=2 positions, counted from 0",
        3,
    ),
    (
        lambda: tfattn.MultiHeadAttention(2, 3)(
            keras.Input((T, D)), keras.Input((S, D)), bias=tfattn.biases.alibi(5)
        ),
        "MultiHeadAttention",
        "bias",
        "have as many heads as the scores, 2",
        "'alibi(5)'",
    ),
)
def test_a_bad_shape_is_refused_symbolically_too(act, who, argument, expected, received):
    sentence = message(who, argument, expected, received)
    if BACKEND != "tensorflow":  # where Keras traces unknown sizes by names or numbers of its own
        sentence = sentence.replace("None", r"(None|\w+)")
    with pytest.raises(ValueError, match=sentence):
        act()


@pytest.mark.parametrize("make", [lambda **o: tfattn.TransformerEncoderBlock(2, 7, **o)])
def test_a_block_asks_for_a_width_that_is_known(make):
    with pytest.raises(
        ValueError, match=r"TransformerEncoderBlock: `inputs` must .+\. Received: inputs="
    ):
        make()(keras.Input((None, None)))


def test_lengths_that_differ_within_the_residual_are_refused():
    with pytest.raises(ValueError, match=r"AddNorm: `outputs` must .+\. Received: outputs="):
        tfattn.AddNorm()(QUERY, VALUE)


def test_a_start_index_that_is_no_integer_is_refused():
    for start in (1.5, np.array([1.0, 2.0])):
        with pytest.raises(
            ValueError,
            match=r"SinusoidalPositionalEncoding: `start_index` must .+\. Received: start",
        ):
            tfattn.SinusoidalPositionalEncoding()(QUERY, start_index=start)


def test_a_start_index_for_each_row_has_one_for_each_row():
    with pytest.raises(
        ValueError, match=r"SinusoidalPositionalEncoding: `start_index` must .+\. Received: start"
    ):
        tfattn.SinusoidalPositionalEncoding()(QUERY, start_index=np.array([1, 2, 3]))


@pytest.mark.tensorflow
def test_ragged_inputs_are_refused_with_the_recipe():
    ragged = tf.ragged.constant([[[1.0, 2.0], [3.0, 4.0]], [[1.0, 1.0]]], ragged_rank=1)
    with pytest.raises(
        ValueError, match=r"DotProductAttention: `query` must .*to_tensor.*valid_lens"
    ):
        tfattn.DotProductAttention()(ragged, ragged)
