"""Encoder and decoder blocks against a composition in NumPy, and what masks do to them."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.tensors import as_tensor, both_ways, numpy, tf
from tfattn.layers.parts import copy_of

B, T, S, D, H, HIDDEN = 2, 5, 7, 6, 3, 11


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def built(block, *shapes):
    """The block with weights that no initializer gives: norms and biases are not 1 and 0 either."""
    block.build(*shapes)
    rng = np.random.default_rng(7)
    block.set_weights([rng.normal(size=weight.shape) * 0.5 for weight in block.get_weights()])
    return block


def layer_norm(layer, x):
    return reference.layer_norm(x, *layer.norm.get_weights())


def attention(layer, query, memory, mask):
    wq, bq, wk, bk, wv, bv, wo, bo = (weight.astype("float64") for weight in layer.get_weights())
    q, k, v = (
        np.einsum("btd,dhp->bhtp", x, w) + b[:, None]
        for x, w, b in ((query, wq, bq), (memory, wk, bk), (memory, wv, bv))
    )
    scores = np.where(mask, np.einsum("bhtp,bhsp->bhts", q, k) / np.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhts,bhsp,hpe->bte", weights, v, wo) + bo, weights


def feed_forward(layer, x):
    w1, b1, w2, b2 = layer.get_weights()
    return np.maximum(x @ w1 + b1, 0) @ w2 + b2


def around(norm, x, sublayer, norm_first):
    """The residual, in the paper's order or before."""
    return x + sublayer(layer_norm(norm, x)) if norm_first else layer_norm(norm, x + sublayer(x))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_an_encoder_block_is_the_papers_formula(norm_first, causal):
    block = built(tfattn.TransformerEncoderBlock(H, HIDDEN, norm_first=norm_first), (B, T, D))
    x, weights = draw(B, T, D).astype("float64"), []
    mask = np.tril(np.ones((T, T), bool)) if causal else True

    def attend(y):
        output, w = attention(block.self_attention, y, y, mask)
        weights.append(w)
        return output

    y = around(block.self_attention_norm, x, attend, norm_first)
    wanted = around(
        block.feed_forward_norm, y, lambda z: feed_forward(block.feed_forward, z), norm_first
    )
    output, scores = block(x, use_causal_mask=causal, return_attention_scores=True)
    np.testing.assert_allclose(output, wanted, atol=2e-5)
    np.testing.assert_allclose(scores, weights[0], atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_block_is_the_papers_formula(norm_first):
    block = built(
        tfattn.TransformerDecoderBlock(H, HIDDEN, norm_first=norm_first), (B, T, D), (B, S, 13)
    )
    x, memory, weights = draw(B, T, D).astype("float64"), draw(B, S, 13, seed=1), []
    real = np.arange(S) < np.array([[7], [4]])

    def attend(layer, query, other, mask):
        output, w = attention(layer, query, other, mask)
        weights.append(w)
        return output

    y = around(
        block.self_attention_norm,
        x,
        lambda z: attend(block.self_attention, z, z, np.tril(np.ones((T, T), bool))),
        norm_first,
    )
    y = around(
        block.cross_attention_norm,
        y,
        lambda z: attend(block.cross_attention, z, memory, real[:, None, None]),
        norm_first,
    )
    wanted = around(
        block.feed_forward_norm, y, lambda z: feed_forward(block.feed_forward, z), norm_first
    )
    for padding in ({"valid_lens": np.array([7, 4])}, {"memory_mask": real}):
        output, *scores = block(x, memory, return_attention_scores=True, **padding)
        np.testing.assert_allclose(output, wanted, atol=2e-5)
        for ours, theirs in zip(scores, weights, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
@pytest.mark.parametrize("training", [False, None])
def test_changing_a_target_token_leaves_the_outputs_before_it_alone(
    dropout, scores, dtype, training
):
    block = tfattn.TransformerDecoderBlock(
        H, HIDDEN, dropout=dropout, attention_dropout=dropout, dtype=dtype
    )
    target, memory = draw(B, T, D), draw(B, S, D, seed=1)

    def run(target):
        result = block(target, memory, return_attention_scores=scores, training=training)
        return np.asarray(result[0] if scores else result)

    before = run(target)
    for t in range(T):
        changed = target.copy()
        changed[:, t] += 3.0
        after = run(changed)
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert np.all(np.any(after[:, t:] != before[:, t:], axis=-1))


def test_asking_for_weights_changes_no_output():
    x, memory = draw(B, T, D), draw(B, S, D, seed=1)
    encoder, decoder = (
        tfattn.TransformerEncoderBlock(H, HIDDEN),
        tfattn.TransformerDecoderBlock(H, HIDDEN),
    )
    np.testing.assert_array_equal(encoder(x), encoder(x, return_attention_scores=True)[0])
    np.testing.assert_array_equal(
        decoder(x, memory), decoder(x, memory, return_attention_scores=True)[0]
    )


@pytest.mark.parametrize("garbage", [3.0, np.inf, np.nan])
def test_padded_memory_has_no_influence(garbage):
    block = tfattn.TransformerDecoderBlock(H, HIDDEN)
    target, memory, real = draw(B, T, D), draw(B, S, D, seed=1), np.arange(S) < np.array([[7], [4]])
    wanted = block(target, memory, memory_mask=real)
    memory[~real] = garbage
    np.testing.assert_array_equal(block(target, memory, memory_mask=real), wanted)
    memory[0, 0] = 3.0
    assert np.any(block(target, memory, memory_mask=real)[0] != wanted[0])


def test_padded_memory_has_no_gradient_and_spoils_none():
    block = tfattn.TransformerDecoderBlock(H, HIDDEN)
    memory, real = draw(B, S, D, seed=1), np.arange(S) < np.array([[7], [4]])
    memory[~real] = np.nan
    block(draw(B, T, D), memory, memory_mask=real)

    def cubes(memory):
        return ops.sum(block(draw(B, T, D), memory, memory_mask=real) ** 3)

    _, (of_memory, *of_weights) = both_ways(cubes, [memory], variables=block.trainable_weights)
    assert not np.any(numpy(of_memory)[~real])
    assert np.all(np.any(numpy(of_memory)[real] != 0, axis=-1))
    assert all(np.isfinite(gradient).all() for gradient in of_weights)


def stack(norm_first, dtype="float32"):
    return [
        tfattn.TransformerEncoderBlock(H, HIDDEN, norm_first=norm_first, dtype=dtype)
        for _ in range(3)
    ]


IDS = np.array([[3, 5, 4, 0, 0], [1, 2, 4, 2, 0]])


# Before 3.13 Keras drops a tensor's mask where a layer of another policy casts the tensor, before
# the layer is called.
keras_casts_masks_away = pytest.mark.skipif(
    tuple(int(part) for part in keras.__version__.split(".")[:2]) < (3, 13),
    reason="Keras loses masks in casts before 3.13",
)


@pytest.mark.tensorflow
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("mixed_bfloat16", marks=keras_casts_masks_away)]
)
def test_an_embeddings_mask_travels_through_all_blocks(norm_first, dtype):
    embedding, blocks = keras.layers.Embedding(11, D, mask_zero=True), stack(norm_first, dtype)
    positions = tfattn.SinusoidalPositionalEncoding(input_scale=D**0.5)

    def by_itself(ids):
        x = positions(embedding(ids))
        for block in blocks:
            x = block(x)
        return x

    def by_hand(ids):
        x = ops.copy(positions(embedding(ids)))  # a copy without a mask
        for block in blocks:
            x = ops.copy(block(x, mask=ids != 0))
        return x

    wanted = by_hand(IDS)
    np.testing.assert_array_equal(by_itself(IDS), wanted)
    np.testing.assert_array_equal(by_itself(IDS)._keras_mask, IDS != 0)
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, by_itself(inputs))
    tolerance = 1e-5 if dtype == "float32" else 0.1
    for run in (model, tf.function(by_itself), lambda ids: model.predict(ids, verbose=0)):
        np.testing.assert_allclose(run(as_tensor(IDS)), wanted, atol=tolerance)
    # The test can tell: without the mask the numbers are others.
    x = ops.copy(positions(embedding(IDS)))
    for block in blocks:
        x = block(x)
    assert np.abs(np.asarray(x - wanted, "float32"))[:, :3].max() > 2 * tolerance


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("extra", ["valid_lens", "bias", "attention_mask"])
def test_an_embeddings_mask_holds_beside_another_tensor(norm_first, extra):
    # With two tensors in a call Keras fills `inputs_mask` and not `mask`.
    block, x = stack(norm_first)[0], keras.layers.Embedding(11, D, mask_zero=True)(IDS)
    tensor = {
        "valid_lens": as_tensor([5, 4]),
        "bias": as_tensor(draw(T, T)),
        "attention_mask": ops.ones((T, T), bool),
    }
    other = {extra: tensor[extra]}
    np.testing.assert_allclose(
        block(x, **other), block(ops.copy(x), mask=IDS != 0, **other), atol=1e-6
    )


def test_a_functional_model_keeps_the_mask_beside_another_tensor():
    block = stack(False)[0]
    ids, bias = keras.Input((None,), dtype="int32"), keras.Input((None, None))
    embedded = keras.layers.Embedding(11, D, mask_zero=True)(ids)
    model = keras.Model([ids, bias], [embedded, block(embedded, bias=bias)])
    added = draw(B, T, T)
    x, output = model([IDS, added])
    np.testing.assert_allclose(output, block(ops.copy(x), mask=IDS != 0, bias=added), atol=1e-5)


def test_both_masks_reach_a_decoder_block_by_themselves():
    embedding, block = (
        keras.layers.Embedding(11, D, mask_zero=True),
        tfattn.TransformerDecoderBlock(H, HIDDEN),
    )
    source = np.array([[3, 5, 0, 0, 0, 0, 0], [1, 2, 4, 2, 9, 8, 0]])
    target, memory = embedding(IDS), embedding(source)
    by_hand = block(
        ops.copy(target), ops.copy(memory), inputs_mask=IDS != 0, memory_mask=source != 0
    )
    output = block(target, memory)
    np.testing.assert_array_equal(output, by_hand)
    np.testing.assert_array_equal(output._keras_mask, IDS != 0)
    # The caller's tensors keep theirs, so that the next layer sees them too.
    np.testing.assert_array_equal(memory._keras_mask, source != 0)
    np.testing.assert_array_equal(block(target, memory), output)


def test_all_masks_of_an_encoder_block_join_by_and():
    block, x = tfattn.TransformerEncoderBlock(H, HIDDEN), draw(B, T, D)
    window = np.abs(np.arange(T)[:, None] - np.arange(T)) < 3
    real = np.arange(T) < np.array([[3], [5]])
    _, weights = block(
        x,
        mask=real,
        attention_mask=window,
        valid_lens=np.array([5, 4]),
        use_causal_mask=True,
        return_attention_scores=True,
    )
    lengths = np.arange(T) < np.array([[5], [4]])
    visible = np.tril(window) & (real & lengths)[:, None]
    np.testing.assert_array_equal(
        np.asarray(weights) > 0, np.broadcast_to(visible[:, None], weights.shape)
    )


def test_a_mask_over_the_memory_and_one_over_the_target_are_two_arguments():
    block = tfattn.TransformerDecoderBlock(H, HIDDEN)
    over_target, over_memory = np.eye(T, dtype=bool), np.arange(S) == np.arange(T)[:, None]
    _, own, cross = block(
        draw(B, T, D),
        draw(B, S, D),
        attention_mask=over_target,
        memory_attention_mask=over_memory,
        use_causal_mask=False,
        return_attention_scores=True,
    )
    for weights, mask in ((own, over_target), (cross, over_memory)):
        # Exactly 0 where it hides; what is left has weight 1, which a softmax may give as one bit
        # less.
        np.testing.assert_allclose(weights, np.broadcast_to(mask, weights.shape), rtol=2e-7, atol=0)


@pytest.mark.parametrize(
    "score", [tfattn.AdditiveScore(units=5), tfattn.CosineScore(0.5), tfattn.KernelScore()]
)
def test_any_score_fits_and_each_attention_has_its_own(score):
    attention = tfattn.MultiHeadAttention(H, D // H, score=score)
    block = tfattn.TransformerDecoderBlock(attention=attention, hidden_dim=HIDDEN)
    target, memory = draw(B, T, D), draw(B, S, D, seed=1)
    assert block(target, memory).shape == (B, T, D)
    own, cross = block.self_attention.score, block.cross_attention.score
    assert type(own) is type(cross) is type(score) and own is not cross and own is not score
    assert not score.built  # the caller's own is a template
    assert len({id(weight) for weight in block.weights}) == len(block.weights)


def test_key_heads_may_be_shared():
    attention = tfattn.MultiHeadAttention(H, D // H, num_key_value_heads=1)
    block = tfattn.TransformerEncoderBlock(attention=attention, hidden_dim=HIDDEN)
    assert block(draw(B, T, D)).shape == (B, T, D)
    assert block.self_attention.key_dense.kernel.shape == (D, 1, D // H)


def test_dropout_acts_in_training_alone():
    for options in ({"dropout": 0.5}, {"attention_dropout": 0.5}):
        block, x = tfattn.TransformerEncoderBlock(H, HIDDEN, seed=3, **options), draw(B, T, D)
        np.testing.assert_array_equal(block(x), block(x, training=False))
        assert np.any(block(x, training=True) != block(x, training=True))


def test_returned_weights_are_those_before_dropout():
    block, x = tfattn.TransformerEncoderBlock(H, HIDDEN, attention_dropout=0.5), draw(B, T, D)
    _, weights = block(x, training=True, return_attention_scores=True)
    np.testing.assert_allclose(np.sum(weights, axis=-1), np.ones((B, H, T)), atol=1e-6)


def bounds(block):
    """Largest first weight of each linear map over Glorot's bound for it."""
    found = {}
    for weight in block.trainable_weights:
        if weight.path.endswith("kernel"):
            rows = (
                weight.shape[0]
                if "attention_output" not in weight.path
                else weight.shape[0] * weight.shape[1]
            )
            columns = np.prod(weight.shape) // rows
            found["/".join(weight.path.split("/")[1:-1])] = np.abs(numpy(weight)).max() / np.sqrt(
                6 / (rows + columns)
            )
    return found


def test_linear_maps_begin_as_in_published_transformers():
    # Glorot's rule; by 1/√2 smaller for query, key and value, which could be one map to all three.
    block = tfattn.TransformerDecoderBlock(4, 96)
    block.build((None, None, 64), (None, None, 64))
    for name, bound in bounds(block).items():
        smaller = name.split("/")[-1] in ("query", "key", "value")
        assert 0.98 < bound / (2**-0.5 if smaller else 1.0) <= 1.0, name
    assert len(bounds(block)) == 2 * 4 + 2


def test_the_parts_passed_in_bring_their_initializers():
    ones = keras.initializers.Ones()
    attention = tfattn.MultiHeadAttention(2, 5, kernel_initializer="glorot_uniform")
    feed_forward = tfattn.PositionwiseFeedForward(HIDDEN, kernel_initializer=ones)
    block = tfattn.TransformerEncoderBlock(attention=attention, feed_forward=feed_forward)
    block.build((None, None, 64))
    of_attention = {name: b for name, b in bounds(block).items() if "attention" in name}
    assert all(0.9 < bound <= 1.0 for bound in of_attention.values()) and len(of_attention) == 4
    assert np.all(block.feed_forward.inner.kernel == 1) and np.all(
        block.feed_forward.outer.kernel == 1
    )


# Parts that are passed in.


def parts(**options):
    """A block's arguments with nothing in it that is there by default."""
    attention = tfattn.MultiHeadAttention(
        H, 5, value_dim=4, num_key_value_heads=1, score=tfattn.AdditiveScore(units=3), dropout=0.2
    )
    return {
        "attention": attention,
        "feed_forward": tfattn.PositionwiseFeedForward(HIDDEN, activation="tanh", dropout=0.1),
        "norm": keras.layers.RMSNormalization(epsilon=1e-3),
        "dropout": 0.3,
        **options,
    }


KINDS = {
    "encoder": (tfattn.TransformerEncoderBlock, [(B, T, D)]),
    "decoder": (tfattn.TransformerDecoderBlock, [(B, T, D), (B, S, 13)]),
    "decoder without memory": (tfattn.TransformerDecoderBlock, [(B, T, D)]),
}


def rms_norm(layer, x):
    return reference.rms_norm(x, layer.norm.get_weights()[0], epsilon=1e-3)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_block_of_parts_is_the_papers_formula_over_them(norm_first):
    options = parts(
        attention=tfattn.MultiHeadAttention(H, 5, value_dim=4, num_key_value_heads=1),
        norm_first=norm_first,
    )
    block = built(tfattn.TransformerEncoderBlock(**options), (B, T, D))
    x = draw(B, T, D).astype("float64")
    network = block.feed_forward.get_weights()

    def attend(y):
        return reference.multi_head(y, y, y, block.self_attention.get_weights())[0]

    def feed(y):
        w1, b1, w2, b2 = network
        return np.tanh(y @ w1 + b1) @ w2 + b2

    for norm, sublayer in ((block.self_attention_norm, attend), (block.feed_forward_norm, feed)):
        x = x + sublayer(rms_norm(norm, x)) if norm_first else rms_norm(norm, x + sublayer(x))
    np.testing.assert_allclose(block(draw(B, T, D)), x, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_passed_in_stays_as_it_is(kind):
    cls, shapes = KINDS[kind]
    given = parts()
    names = ("attention", "feed_forward", "norm")
    before = {name: given[name].get_config() for name in names}
    cls(**given, seed=5, dtype="mixed_bfloat16").build(*shapes)
    for name in names:
        assert not given[name].built and not given[name].weights
        assert given[name].get_config() == before[name]


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_is_no_part_of_the_block(kind):
    cls, shapes = KINDS[kind]
    given = parts()
    block = cls(**given)
    block.build(*shapes)
    given["attention"].build(*shapes[:1] * 2)  # the caller's, of which the block knows nothing
    assert all(layer.built for layer in block._flatten_layers())
    assert block.attention.num_key_value_heads == 1 and not block.attention.built
    assert block.norm.epsilon == 1e-3 and not block.norm.built


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_parts_have_the_blocks_precision_and_seeds_of_their_own(kind):
    cls, shapes = KINDS[kind]
    block = cls(**parts(), seed=5, dtype="mixed_bfloat16")
    block.build(*shapes)
    attentions = [block.self_attention] + ([block.cross_attention] if len(shapes) == 2 else [])
    seeded = [*attentions, block.feed_forward, block.self_attention_norm, block.feed_forward_norm]
    assert len({layer.seed for layer in seeded} - {None}) == len(seeded)
    norms = [block.self_attention_norm.norm, block.feed_forward_norm.norm]
    assert {layer.compute_dtype for layer in (*seeded, *norms)} == {"bfloat16"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plain", [False, True])
def test_a_copy_of_a_block_is_a_new_block_with_another_name_and_seed(kind, plain):
    cls, shapes = KINDS[kind]
    block = cls(H, HIDDEN, dropout=0.3) if plain else cls(**parts(), norm_first=True)
    block.build(*shapes)
    copy = copy_of(block, name="block_3", seed=7)
    assert type(copy) is cls and not copy.built and not copy.weights
    assert copy.get_config() == {**block.get_config(), "name": "block_3", "seed": 7}
    copy.build(*shapes)
    assert [w.shape for w in copy.weights] == [w.shape for w in block.weights]
    assert not {id(w) for w in copy.weights} & {id(w) for w in block.weights}
    assert copy.self_attention.score is not block.self_attention.score
    assert copy.self_attention.seed != block.self_attention.seed


@keras.saving.register_keras_serializable("tests")
class TwoMaps(keras.layers.Layer):
    """A feed-forward of a user: without a `build`, without a word on masks or training."""

    def __init__(self, width=D, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.inner, self.outer = keras.layers.Dense(5), keras.layers.Dense(width)

    def call(self, inputs):
        return self.outer(self.inner(inputs))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


@pytest.mark.parametrize(
    "feed_forward",
    [
        keras.layers.Dense(D, activation="relu"),
        keras.Sequential([keras.layers.Dense(5, activation="relu"), keras.layers.Dense(D)]),
        TwoMaps(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_any_layer_serves_as_feed_forward_and_comes_back_from_a_file(feed_forward, tmp_path):
    block = tfattn.TransformerEncoderBlock(H, feed_forward=feed_forward)
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, block(keras.layers.Embedding(11, D, mask_zero=True)(ids)))
    assert len(block.feed_forward.trainable_weights) == len(model.trainable_weights) - 1 - 8 - 4
    np.testing.assert_array_equal(model(IDS)._keras_mask, IDS != 0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IDS), model(IDS))
    assert not feed_forward.built


def test_a_config_of_before_the_parts_is_taken_where_it_is_the_papers():
    config = tfattn.TransformerEncoderBlock(H, HIDDEN).get_config()
    for name in ("attention", "feed_forward", "norm"):
        del config[name]
    former = {
        "activation": "relu",
        "score": None,
        "num_key_value_heads": None,
        "kernel_initializer": None,
    }
    again = tfattn.TransformerEncoderBlock.from_config({**config, **former})
    assert again.hidden_dim == HIDDEN
    with pytest.raises(
        ValueError, match="`activation` must be given to `attention` or `feed_forward`: build"
    ):
        tfattn.TransformerEncoderBlock.from_config({**config, **former, "activation": "gelu"})


def test_a_norm_for_the_end_of_a_stack_is_as_the_blocks():
    given = tfattn.TransformerEncoderBlock(**parts())
    norm = given.make_norm("final_norm", "mixed_bfloat16")
    assert type(norm) is keras.layers.RMSNormalization and norm is not given.norm
    assert (norm.epsilon, norm.name, norm.compute_dtype) == (1e-3, "final_norm", "bfloat16")
    norm = tfattn.TransformerEncoderBlock(H, HIDDEN).make_norm("final_norm")
    assert isinstance(norm, keras.layers.LayerNormalization) and norm.epsilon == 1e-5


# A decoder block without a memory.


def without_memory(norm_first=False, **options):
    block = tfattn.TransformerDecoderBlock(**{**parts(norm_first=norm_first), **options})
    return built(block, (B, T, D))


@pytest.mark.parametrize("norm_first", [False, True])
def test_without_a_memory_a_decoder_block_is_a_causal_encoder_block(norm_first):
    decoder, x = without_memory(norm_first), draw(B, T, D)
    encoder = tfattn.TransformerEncoderBlock(**parts(norm_first=norm_first))
    encoder.build((B, T, D))
    encoder.set_weights(decoder.get_weights())
    real = np.arange(T) < np.array([[3], [5]])
    for options in ({}, {"mask": real}):
        theirs = encoder(x, use_causal_mask=True, return_attention_scores=True, **options)
        masks = {"inputs_mask": real} if options else {}
        ours = decoder(x, return_attention_scores=True, **masks)
        assert len(ours) == 2
        for our, their in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(our, their, atol=1e-6)
    assert not any("cross" in weight.path for weight in decoder.weights)
    assert decoder.cross_attention is None and decoder.cross_attention_norm is None


@pytest.mark.parametrize("norm_first", [False, True])
def test_steps_without_a_memory_are_the_call(norm_first):
    block, x, length = without_memory(norm_first), draw(B, T, D), T + 2
    wanted = np.asarray(block(x))
    cache = block.new_cache(max_length=length, batch_size=B)
    assert {name: part.shape for name, part in cache.items()} == {
        "keys": (B, 1, length, 5),
        "values": (B, 1, length, 4),
    }
    for t in range(T):
        bias = np.where(np.arange(length) <= t, 0.0, -np.inf)[None, None]
        output, cache = block.step(x[:, t : t + 1], t, cache, bias)
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-5)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_steps_with_turned_heads_are_the_call(norm_first, memory):
    positions = tfattn.RotaryPositions()
    attention = tfattn.MultiHeadAttention(H, 4, num_key_value_heads=1, positions=positions)
    given = parts(attention=attention, norm_first=norm_first)
    shapes = [(B, T, D), (B, S, 13)] if memory else [(B, T, D)]
    block = built(tfattn.TransformerDecoderBlock(**given), *shapes)
    others = [draw(B, S, 13, seed=1)] if memory else []
    x, length = draw(B, T, D), T + 2
    wanted = np.asarray(block(x, *others))
    rows = {} if memory else {"batch_size": B}
    cache = block.new_cache(*others, max_length=length, **rows)
    for t in range(T):
        bias = np.where(np.arange(length) <= t, 0.0, -np.inf)[None, None]
        output, cache = block.step(x[:, t : t + 1], t, cache, bias)
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-5)
    # The numbers depend on where a token stands, and the memory's on nothing of the kind.
    plain = built(
        tfattn.TransformerDecoderBlock(
            **{**given, "attention": copy_of(attention, positions=None)}
        ),
        *shapes,
    )
    plain.set_weights(block.get_weights())
    assert np.abs(plain(x, *others) - wanted).max() > 0.01
    if memory:
        assert type(block.self_attention.positions) is tfattn.RotaryPositions
        assert block.cross_attention.positions is None


def test_turned_heads_see_a_shift_of_all_tokens_as_no_change():
    """Scores depend on distances alone: what makes the positions relative."""
    attention = tfattn.MultiHeadAttention(H, 4, positions=tfattn.RotaryPositions())
    block = built(
        tfattn.TransformerEncoderBlock(attention=attention, hidden_dim=HIDDEN), (B, T + 2, D)
    )
    x = draw(B, T, D)
    later = np.concatenate([np.zeros((B, 2, D), "float32"), x], axis=1)
    real = np.arange(T + 2) >= np.array([[2], [2]])
    np.testing.assert_allclose(block(later, mask=real)[:, 2:], block(x), atol=1e-5)


def test_a_cache_of_values_of_another_width_serves_beside_a_memory():
    block = built(tfattn.TransformerDecoderBlock(**parts()), (B, T, D), (B, S, 13))
    x, memory = draw(B, T, D), draw(B, S, 13, seed=1)
    wanted, cache = np.asarray(block(x, memory)), block.new_cache(memory, T)
    for t in range(T):
        bias = np.where(np.arange(T) <= t, 0.0, -np.inf)[None, None]
        output, cache = block.step(x[:, t : t + 1], t, cache, bias)
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-5)
