"""Refusals that teach: relations between arguments, and a way out in the sentence.

Each is a `ValueError` in the design's one form: who, which argument, what was expected, what was
received. That each argument of each callable is checked at all: `test_invalid_arguments.py`.
"""

import functools

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.refusals import HERE, message, refused
from tests.helpers.tensors import BACKEND, tf
from tfattn import biases, masks
from tfattn.core.tensors import check_lengths, known_values
from tfattn.decoding import rules
from tfattn.layers import tokens

B, T, S, D, V = 2, 3, 7, 5, 11

QUERY, VALUE = np.ones((B, T, D), "float32"), np.ones((B, S, D), "float32")

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
POSITIONS = "have at most `max_length`=5 positions, counted from 0"
HEADS_OF_SCORES = "have as many heads as the scores"
CAUSAL, ALIBI, ROTARY = masks.causal(), biases.alibi(2), tfattn.RotaryPositions()


def attention(*tensors, **options):
    return tfattn.DotProductAttention()(*tensors, **options)


def heads(*sizes, **options):
    return tfattn.MultiHeadAttention(*(sizes or (2, 3)), **options)


def encoder_block(num_heads=5, hidden_dim=11, inputs=QUERY, **options):
    return tfattn.TransformerEncoderBlock(num_heads, hidden_dim, **options)(inputs)


def decoder_block(*shapes):
    block = tfattn.TransformerDecoderBlock(5, 11)
    block.build((B, T, D), *shapes)
    return block


def transformer(**options):
    sizes = {"num_layers": 1, "width": 10, "num_heads": 2, "hidden_dim": 7}
    return tfattn.Transformer(V, **{**sizes, **options})


def input_of(*shape, dtype="float32"):
    return keras.Input(shape, dtype=dtype)


def test_sizes_that_a_part_has_already_are_refused():
    who = "TransformerEncoderBlock: "
    with refused(f"{who}`num_heads` must be passed, unless `attention` is", None):
        encoder_block(None)
    with refused(f"{who}`num_heads` must match the value of `attention`, 2, or be omitted", 3):
        encoder_block(3, attention=heads())
    matched = "must match the value of `attention`, 0.2, or be omitted"
    with refused(f"{who}`attention_dropout` {matched}", 0.1):
        encoder_block(None, attention=heads(dropout=0.2), attention_dropout=0.1)
    with refused(f"{who}`hidden_dim` must match the value of `feed_forward`, 7, or be omitted", 11):
        encoder_block(feed_forward=tfattn.PositionwiseFeedForward(7))
    with refused(f"{who}`hidden_dim` must be omitted, since `feed_forward` has none", 11):
        encoder_block(feed_forward=keras.layers.Dense(5))
    who, block = "TransformerEncoder: ", tfattn.TransformerEncoderBlock(2, 7)
    with refused(f"{who}`num_heads` must match the value of `block`, 2, or be omitted", 5):
        transformer(num_heads=5, block=block)
    with refused(f"{who}`dropout` must match the value of `block`, 0.0, or be omitted", 0.1):
        transformer(dropout=0.1, block=block)
    shared = "must be `source_vocabulary_size`=11 where embeddings are shared"
    with refused(f"Transformer: `target_vocabulary_size` {shared}", 13):
        transformer(share_embeddings=True, target_vocabulary_size=13)


def test_heads_that_do_not_divide_are_refused():
    divide = "must divide `num_heads`=4 without remainder"
    with refused(f"MultiHeadAttention: `num_key_value_heads` {divide}", 3):
        heads(4, 3, num_key_value_heads=3)
    with refused(f"TransformerEncoderBlock: `num_heads` must {DIVIDE}", 2):
        encoder_block(2)
    with refused("TransformerEncoder: `num_heads` must divide `width`=10 without remainder", 3):
        transformer(num_heads=3)
    with refused("attend: `key heads` must divide `query heads`=5 without remainder", 3):
        tfattn.attend(np.ones((2, 5, 3, 7)), np.ones((2, 3, 11, 7)))
    with refused("attend: `value` must have as many heads as `key`, 3", "(2, 2, 7, 5)"):
        key = np.ones((2, 3, 7, 5))
        tfattn.attend(np.ones((2, 6, 3, 5)), np.ones((2, 2, 7, 5)), key=key)


def test_bandwidths_and_positions_of_another_kind_are_refused():
    who = "KernelScore: `bandwidth` must"
    with refused(f"{who} be a positive, finite number", 0.0):
        tfattn.KernelScore(bandwidth=[1.0, 0.0])
    with refused(f"{who} hold at least one number", "[]"):
        tfattn.KernelScore(bandwidth=[])
    with refused(f"{who} be one number, or one per dimension of the keys, 5", "[1.0, 2.0]"):
        tfattn.KernelScore(bandwidth=[1.0, 2.0])(QUERY, VALUE)
    way = "for positions within attention pass "
    way += "`block=...(attention=MultiHeadAttention(positions=...))`"
    said = f"`positions` must be a positional encoding of the inputs; {way}"
    with refused(f"TransformerEncoder: {said}", ROTARY):
        transformer(positions=ROTARY)


@pytest.mark.slow
def test_tensors_whose_sizes_do_not_match_are_refused():
    keys = "have shape (B, S, F), with the S of `value`, 7"
    with refused(f"DotProductAttention: `key` must {keys}", "(2, 6, 5)"):
        attention(QUERY, VALUE, key=VALUE[:, 1:])
    with refused(f"attend: `key` must {KEYS}", 6):
        tfattn.attend(QUERY, VALUE, key=VALUE[:, 1:])
    with refused(f"DotProductScore: `key width` must {WIDTH}", 4):
        attention(QUERY, VALUE[..., :4])
    who = "TransformerEncoderBlock:"
    with refused(f"{who} `attention` must return the width of the inputs, 5", 13):
        encoder_block(None, attention=heads(output_shape=13))
    with refused(f"{who} `feed_forward` must return the width of the inputs, 5", 13):
        encoder_block(hidden_dim=None, feed_forward=keras.layers.Dense(13))
    with refused(f"LearnedPositionalEncoding: `inputs` must {POSITIONS}", 7):
        tfattn.LearnedPositionalEncoding(5)(QUERY, start_index=4)
    with refused("NadarayaWatson: `query` must have as many tokens as `key`, which has 7", 3):
        tfattn.NadarayaWatson(leave_one_out=True)(QUERY, VALUE)
    with refused("CausalLM: `prompt` must have at most `max_length`=2 tokens", "(1, 3)"):
        tfattn.CausalLM(V, 1, 4, 2).encode([[4, 5, 6]], max_length=2)
    ids = (
        "be a tensor of numbers, of shape (B, P), of integers, each row padded with 0 on the right"
    )
    with refused(f"CausalLM: `prompt` must {ids}", "[[4, 5], [6]]"):
        tfattn.CausalLM(V, 1, 4, 2).encode([[4, 5], [6]], max_length=6)
    # lengths within the residual, and a start for each row
    with pytest.raises(ValueError, match=r"AddNorm: `outputs` must .+\. Received: outputs="):
        tfattn.AddNorm()(QUERY, VALUE)
    refusal = r"SinusoidalPositionalEncoding: `start_index` must .+\. Received: start"
    with pytest.raises(ValueError, match=refusal):
        tfattn.SinusoidalPositionalEncoding()(QUERY, start_index=np.array([1, 2, 3]))


@pytest.mark.slow
def test_memory_that_a_decoder_block_was_not_built_for_is_refused():
    """A block has a memory from the first call on or never."""
    who, without, with_memory = (
        "TransformerDecoderBlock: ",
        decoder_block(),
        decoder_block((B, S, D)),
    )
    omitted = "`memory` must be omitted, since the block was built without cross-attention"
    passed = "`memory` must be passed, since the block was built with a memory"
    with refused(who + omitted, "(2, 7, 5)"):
        without(QUERY, VALUE)
    with refused(who + omitted, "(2, 7, 5)"):
        without.new_cache(VALUE, 3)
    for name in ("memory_mask", "memory_attention_mask", "valid_lens"):
        with refused(f"{who}`{name}` must be omitted without `memory`", "'anything'"):
            without(QUERY, **{name: "anything"})
    with refused(f"{who}`batch_size` must be passed", None):
        without.new_cache(max_length=3)
    with refused(who + passed, None):
        with_memory(QUERY)
    with refused(who + passed, None):
        with_memory.new_cache(max_length=3, batch_size=2)
    with refused(f"{who}`batch_size` must be omitted with `memory`", 2):
        with_memory.new_cache(VALUE, 3, 2)
    with refused(f"{who}`max_length` must be a positive integer", None):
        with_memory.new_cache(VALUE)


@pytest.mark.slow
def test_masks_lengths_and_biases_of_another_meaning_are_refused():
    one_head, many_heads = ("DotProductAttention: `", "MultiHeadAttention: `")
    with refused(f"{one_head}attention_mask` must {ZEROS_AND_ONES}", 2):
        attention(QUERY, VALUE, attention_mask=np.full((T, S), 2, "int32"))
    with refused(f"{one_head}attention_mask` must {SQUARE}{HERE}", "(2, 7)"):
        attention(QUERY, VALUE, attention_mask=np.ones((B, S), bool))
    with refused(f"{many_heads}attention_mask` must {SQUARE_OF_HEADS}{HERE}", "(2, 5, 3, 7)"):
        heads()(QUERY, VALUE, attention_mask=np.ones((B, 5, T, S), bool))
    with refused(f"{one_head}attention_mask` must {SQUARE}", "(2, 1, 3, 7)"):
        attention(QUERY, VALUE, attention_mask=np.ones((B, 1, T, S), bool))
    with refused(f"{one_head}attention_mask` must {SQUARE}{HERE}", "(3, 13)"):
        attention(QUERY, VALUE, attention_mask=CAUSAL & np.ones((T, 13), bool))
    with refused(f"{one_head}attention_mask` must {LENGTHS}{HERE}", "(3,)"):
        attention(QUERY, VALUE, attention_mask=masks.padding(np.array([1, 2, 3])))
    with refused(f"{one_head}key_mask` must {INT_MASK}", "'float32'"):
        attention(QUERY, VALUE, key_mask=np.ones((B, S), "float32"))
    with refused(f"{one_head}valid_lens` must {LENGTHS}{HERE}", "(2, 7)"):
        attention(QUERY, VALUE, valid_lens=np.ones((B, S), int))
    with refused(f"{one_head}bias` must {SQUARE}{HERE}", "(2, 7)"):
        attention(QUERY, VALUE, bias=np.ones((B, S), "float32"))
    with refused(f"{one_head}bias` must {HEADS_OF_SCORES}, 1", "'alibi(3)'"):
        attention(QUERY, VALUE, bias=biases.alibi(3))
    with refused(f"{many_heads}bias` must {HEADS_OF_SCORES}, 2", "'alibi(1)'"):
        heads()(QUERY, VALUE, bias=biases.alibi(1))
    with refused(f"{many_heads}bias` must {SQUARE_OF_HEADS}{HERE}", "(2, 7)"):
        heads()(QUERY, VALUE, bias=biases.explicit(np.ones((B, S), "float32")))
    numbers = "be numbers or a bias object (pass a mask as the mask)"
    with refused(f"{many_heads}bias` must {numbers}", CAUSAL):
        heads()(QUERY, VALUE, bias=CAUSAL)
    boolean = "be boolean or a mask object (a bias is not a mask)"
    with refused(f"{many_heads}attention_mask` must {boolean}", ALIBI):
        heads()(QUERY, VALUE, attention_mask=ALIBI)


@pytest.mark.parametrize(
    "lengths, number", [([13, 2], 13), ([3, -1], -1), ([[7, 7, 8], [0, 1, 2]], 8)]
)
def test_lengths_beyond_the_keys_are_refused_where_they_are_known(lengths, number):
    expected, call = "hold lengths from 0 to 7, the number of keys", {"valid_lens": lengths}
    for layer in (tfattn.AdditiveAttention(3), heads(), tfattn.NadarayaWatson()):
        with refused(f"{type(layer).__name__}: `valid_lens` must {expected}", number):
            layer(QUERY, VALUE, **call)
    with refused(f"MultiHeadAttention: `valid_lens` must {expected}", number):
        tfattn.TransformerDecoderBlock(5, 11)(QUERY, VALUE, **call)
    with refused(f"masked_softmax: `valid_lens` must {expected}", number):
        tfattn.masked_softmax(np.ones((B, T, S), "float32"), **call)
    if number > 0:
        with refused(f"attend: `mask` must {expected}", number):
            tfattn.attend(QUERY, VALUE, mask=CAUSAL & ~masks.padding(lengths))
    else:
        with refused("masks.padding: `valid_lens` must hold lengths of at least 0", number):
            masks.padding(lengths)
        with refused("masks.prefix: `length` must hold lengths of at least 0", number):
            masks.prefix(lengths)


@pytest.mark.tensorflow
def test_lengths_in_a_graph_or_on_an_accelerator_are_not_read():
    layer = tfattn.DotProductAttention()
    whole = layer(QUERY, VALUE)
    for jit_compile in (False, True):
        run = tf.function(lambda n: layer(QUERY, VALUE, valid_lens=n), jit_compile=jit_compile)
        np.testing.assert_allclose(run(tf.constant([7, 9])), whole, rtol=1e-6)

    class OnAccelerator:
        device = "/device:GPU:0"

        def __array__(self, *args, **kwargs):
            raise AssertionError("copied from the accelerator")

    check_lengths("layer", "valid_lens", OnAccelerator(), 7)


def test_error_of_a_device_turns_no_check_off():
    class Broken:
        def __array__(self, *args, **kwargs):
            raise OSError("the device has failed")

    for check in (lambda ids: tokens.ids_below("layer", "ids", ids, 3), known_values):
        with pytest.raises(OSError, match="the device has failed"):
            check(Broken())


def test_mask_of_floats_or_of_another_shape_is_refused():
    floats = np.ones((T, S), "float32")
    for create, who in (
        (lambda: masks.explicit(floats), "masks.explicit"),
        (lambda: CAUSAL & floats, "masks.explicit"),
        (lambda: tfattn.masked_softmax(np.ones((B, T, S)), mask=floats), "masked_softmax"),
    ):
        with refused(f"{who}: `mask` must {FLOAT_MASK}", "'float32'"):
            create()
    with refused(f"masks.explicit: `mask` must {ZEROS_AND_ONES}", -1):
        masks.explicit(np.full((T, S), -1, "int32"))
    with refused(f"masks.explicit: `mask` must {SQUARE_OF_HEADS}", "(7,)"):
        masks.explicit(np.ones(S, bool))


# What counts as 0 or False in Python is no way to leave an argument of Keras's out.
@pytest.mark.parametrize(
    "value", [False, True, 1.0, "1", (), (1, None), 0, -1, (0, 1), [2, 2]], ids=repr
)
def test_attention_axes_are_not_confused_with_their_absence(value):
    expected = "name axes once, between the batch, 0, and the features, -1"
    sentence = message("MultiHeadAttention", "attention_axes", expected, repr(value))
    with pytest.raises(ValueError, match="^" + sentence + "$"):
        heads(attention_axes=value)


def test_layer_refuses_an_unknown_argument_as_keras_does():
    with pytest.raises(
        ValueError,
        match="Unrecognized keyword arguments passed to MultiHeadAttention: {'head_size': 3}",
    ):
        heads(head_size=3)


def test_name_that_an_argument_has_elsewhere_is_answered_by_its_name_here():
    with refused("TransformerEncoderBlock: `intermediate_dim` must be passed as `hidden_dim`", 7):
        tfattn.TransformerEncoderBlock(2, intermediate_dim=7)
    with refused("Transformer: `d_model` must be passed as `width`", 5):
        tfattn.Transformer(V, d_model=5)
    with refused("DotProductAttention: `dropout_rate` must be passed as `dropout`", 0.1):
        tfattn.DotProductAttention(dropout_rate=0.1)
    with refused("DotProductAttention: `queries` must be passed as `query`", "(2, 3, 5)"):
        attention(queries=QUERY, values=VALUE)
    real = "with True where a token is real"
    with refused(f"MultiHeadAttention: `key_padding_mask` must be passed as `key_mask`, {real}", 3):
        heads()(QUERY, VALUE, key_padding_mask=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        attention(QUERY, VALUE, nonsense=3)

    class Own(tfattn.TransformerEncoderBlock):
        def __init__(self, intermediate_dim, **kwargs):
            super().__init__(hidden_dim=intermediate_dim, **kwargs)

        def call(self, inputs, mask=None, **options):
            return super().call(inputs, mask=mask, attention_mask=options["attn_mask"])

    layer = Own(num_heads=1, intermediate_dim=7)
    assert layer.hidden_dim == 7
    assert layer(QUERY, attn_mask=np.ones((3, 3), bool)).shape == QUERY.shape


# Layers, whom the message names, and which argument.
UNKNOWN_WIDTHS = [
    (tfattn.DotProductAttention(), "DotProductScore: `query`", input_of(7, 5)),
    (tfattn.Attention(tfattn.SoftCapScore(2.0)), "DotProductScore: `query`", input_of(7, None)),
    (tfattn.NadarayaWatson(), "KernelScore: `query`", input_of(7, 5)),
    (tfattn.AdditiveAttention(3), "AdditiveScore: `query`", input_of(7, 5)),
    (tfattn.BilinearScore(), "BilinearScore: `query`", input_of(7, 5)),
    (heads(), "MultiHeadAttention: `query`", input_of(7, 5)),
    (tfattn.AttentionPooling(), "AttentionPooling: `value`"),
    (tfattn.PositionwiseFeedForward(3), "PositionwiseFeedForward: `inputs`"),
    (tfattn.LearnedPositionalEncoding(7), "LearnedPositionalEncoding: `inputs`"),
]


@pytest.mark.slow
def test_bad_shape_is_refused_before_there_are_numbers():
    # Where Keras traces unknown sizes by names or numbers of its own.
    refused_early = functools.partial(refused, anything_for_none=BACKEND != "tensorflow")
    who, query, value = "DotProductAttention: ", input_of(T, D), input_of(S, D)
    with refused_early(f"{who}`query` must have shape (B, T, D)", "(None, 5)"):
        attention(input_of(D), value)
    keys = "have shape (B, S, F), with the S of `value`, 7"
    with refused_early(f"{who}`key` must {keys}", "(None, 6, 5)"):
        attention(query, value, key=input_of(6, D))
    with refused_early(f"DotProductScore: `key width` must {WIDTH}", 4):
        attention(query, input_of(S, 4))
    with refused_early(
        f"MultiHeadAttention: `attention_mask` must {SQUARE_OF_HEADS}{HERE}", "(None, 3)"
    ):
        heads()(query, value, attention_mask=input_of(T, dtype="bool"))
    with refused_early(f"{who}`attention_mask` must {FLOAT_MASK}", "'float32'"):
        attention(query, value, attention_mask=input_of(T, S))
    with refused_early(f"{who}`valid_lens` must {LENGTHS}{HERE}", "(None, 13)"):
        attention(query, value, valid_lens=input_of(13, dtype="int32"))
    with refused_early(f"{who}`valid_lens` must hold integers", "'float32'"):
        attention(query, value, valid_lens=input_of())
    with refused_early(f"{who}`bias` must {HEADS_OF_SCORES}, 1", "'alibi(5)'"):
        attention(query, value, bias=biases.alibi(5))
    with refused_early(f"TransformerEncoderBlock: `num_heads` must {DIVIDE}", 2):
        encoder_block(2, inputs=query)
    with refused_early("NadarayaWatson: `query` must have as many tokens as `key`, which has 7", 3):
        tfattn.NadarayaWatson(leave_one_out=True)(query, value)
    with refused_early(f"LearnedPositionalEncoding: `inputs` must {POSITIONS}", 7):
        tfattn.LearnedPositionalEncoding(5)(value)
    known = "must have a last axis of known size"
    for layer, argument, *others in UNKNOWN_WIDTHS:
        with refused_early(f"{argument} {known}", "(None, 3, None)"):
            layer(input_of(3, None), *others)
    with refused_early(f"attend: `query` {known}", "(2, 3, None)"):
        tfattn.attend(*[keras.KerasTensor((2, 3, None))] * 2)
    before = "attend: `query` must have a number of heads that is known before the graph runs"
    with refused(before, "(None, None, 3, 7)"):
        tfattn.attend(*[keras.KerasTensor((None, None, 3, 7))] * 2)
    with pytest.raises(ValueError, match=r"EncoderBlock: `inputs` must .+\. Received: inputs="):
        encoder_block(2, inputs=input_of(None, None))


@pytest.mark.parametrize(
    "base",
    [masks.Mask, biases.Bias, tfattn.scalings.Scaling, rules.Rule, tfattn.Score, tfattn.Attention],
    ids=lambda base: base.__name__,
)
def test_config_refuses_an_argument_that_is_not_kept(base):
    class Own(base):
        def __init__(self, size, *args, step=1, **kwargs):
            super().__init__(*args, **kwargs)
            self.size = size

    class Whole(Own):
        def get_config(self):
            return {"size": self.size, "step": 1}

    expected = "be kept as an attribute of its name, or `get_config` be overridden"
    with refused(f"Own: `step` must {expected}", "'no attribute'"):
        Own(3, step=2).get_config()
    assert Whole(3).get_config() == {"size": 3, "step": 1}


@pytest.mark.tensorflow
def test_ragged_and_sparse_inputs_are_refused_with_the_recipe():
    ragged = tf.ragged.constant([[[1.0, 2.0], [3.0, 4.0]], [[1.0, 1.0]]], ragged_rank=1)
    for call in (tfattn.attend, lambda *tokens: heads()(*tokens)):
        with pytest.raises(ValueError, match=r"`query` must be dense.*to_tensor.*valid_lens"):
            call(ragged, ragged)
        with pytest.raises(ValueError, match=r"`value` must be dense.*tf\.sparse\.to_dense"):
            call(QUERY, tf.sparse.from_dense(VALUE))
