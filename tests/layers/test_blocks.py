"""Encoder and decoder blocks against a composition in NumPy, and what masks do to them."""

import keras
import numpy as np
import pytest

import tfattn
from tests import reference
from tests.helpers.tensors import numpy
from tests.layers.test_multi_head import draw
from tfattn.layers.configs import copy_of

B, T, S, D, H, HIDDEN = 2, 5, 7, 6, 3, 11
REAL = np.arange(S) < np.array([[7], [4]])


def built(block, *shapes):
    """The block with weights that no initializer gives: norms and biases are not 1 and 0 either."""
    block.build(*shapes)
    rng = np.random.default_rng(7)
    block.set_weights([rng.normal(size=weight.shape) * 0.5 for weight in block.get_weights()])
    return block


def other_parts():
    """Parts of which NumPy has the formulas, and none of which is there by default."""
    return {
        "attention": tfattn.MultiHeadAttention(H, 5, value_dim=4, num_key_value_heads=1),
        "feed_forward": tfattn.PositionwiseFeedForward(HIDDEN, activation="tanh"),
        "norm": keras.layers.RMSNormalization(epsilon=1e-3),
    }


# A block's arguments, its norm and its activation in NumPy.
FORMS = {
    "default": (
        lambda: {"num_heads": H, "hidden_dim": HIDDEN},
        reference.layer_norm,
        lambda x: np.maximum(x, 0),
    ),
    "parts": (other_parts, lambda x, scale: reference.rms_norm(x, scale, 1e-3), np.tanh),
}


def formula(block, form, x, memory=None, mask=None, memory_mask=None):
    """(output, weights of each attention): sublayers within residuals, in the paper's order or with
    the norms before.
    """
    _, norm, activation = FORMS[form]
    found = []

    def over(layer, others, mask):
        def pooled(y):
            value = y if others is None else others
            output, weights = reference.multi_head(y, value, value, layer.get_weights(), mask)
            found.append(weights)
            return output

        return pooled

    def feed(y):
        w1, b1, w2, b2 = block.feed_forward.get_weights()
        return activation(y @ w1 + b1) @ w2 + b2

    sublayers = [(block.self_attention_norm, over(block.self_attention, None, mask))]
    if memory is not None:
        cross = over(block.cross_attention, memory, memory_mask)
        sublayers.append((block.cross_attention_norm, cross))
    for add_norm, sublayer in [*sublayers, (block.feed_forward_norm, feed)]:
        weights = add_norm.norm.get_weights()
        if block.norm_first:
            x = x + sublayer(norm(x, *weights))
        else:
            x = norm(x + sublayer(x), *weights)
    return x, found


def assert_formula(block, wanted, *inputs, **call):
    output, *weights = block(*inputs, return_attention_scores=True, **call)
    np.testing.assert_allclose(output, wanted[0], atol=2e-5)
    for ours, theirs in zip(weights, wanted[1], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_array_equal(block(*inputs, **call), output)


@pytest.mark.parametrize(("form", "norm_first"), [("default", False), ("parts", True)])
def test_encoder_block_equals_the_formula(form, norm_first):
    options = FORMS[form][0]()
    block = built(tfattn.TransformerEncoderBlock(norm_first=norm_first, **options), (B, T, D))
    x = draw(B, T, D)
    for causal, mask in ((False, None), (True, reference.causal(T, T))):
        wanted = formula(block, form, x, mask=mask)
        assert_formula(block, wanted, x, use_causal_mask=causal)


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_block_equals_the_formula(norm_first):
    block = tfattn.TransformerDecoderBlock(H, HIDDEN, norm_first=norm_first)
    x, memory = draw(B, T, D), draw(B, S, 13, seed=1)
    built(block, x.shape, memory.shape)
    real = REAL[:, None, None]
    wanted = formula(block, "default", x, memory, reference.causal(T, T), real)
    for padding in ({"valid_lens": np.array([7, 4])}, {"memory_mask": REAL}):
        assert_formula(block, wanted, x, memory, **padding)


def test_decoder_block_without_memory_equals_the_formula():
    block = tfattn.TransformerDecoderBlock(norm_first=True, **other_parts())
    x, real = draw(B, T, D), np.arange(T) < np.array([[3], [5]])
    built(block, x.shape)
    mask = reference.causal(T, T) & real[:, None, None]
    assert_formula(block, formula(block, "parts", x, mask=mask), x, inputs_mask=real)
    assert not any("cross" in weight.path for weight in block.weights)
    assert block.cross_attention is None and block.cross_attention_norm is None


# `conformance/test_masks` tests the implicit masks of embeddings.


def test_encoder_block_masks_of_every_argument_join_by_and():
    block, window = tfattn.TransformerEncoderBlock(H, HIDDEN), reference.window(3, T, T)
    real, lengths = (np.arange(T) < np.array([[n], [m]]) for n, m in ((3, 5), (5, 4)))
    call = {"mask": real, "attention_mask": window, "valid_lens": lengths.sum(-1)}
    _, weights = block(draw(B, T, D), use_causal_mask=True, return_attention_scores=True, **call)
    visible = np.tril(window) & (real & lengths)[:, None]
    np.testing.assert_array_equal(
        np.asarray(weights) > 0, np.broadcast_to(visible[:, None], weights.shape)
    )


def test_decoder_block_masks_of_target_and_memory_are_apart():
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
        # Exactly 0 at hidden keys; the only visible key has weight 1, up to one bit.
        np.testing.assert_allclose(weights, np.broadcast_to(mask, weights.shape), rtol=2e-7, atol=0)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (tfattn.TransformerEncoderBlock, {"dropout": 0.5}),
        (tfattn.TransformerDecoderBlock, {"attention_dropout": 0.5}),
    ],
    ids=str,
)
def test_block_dropout_is_active_in_training_only(make, options):
    block, x = make(H, HIDDEN, seed=3, **options), draw(B, T, D)
    np.testing.assert_array_equal(block(x), block(x, training=False))
    assert np.any(block(x, training=True) != block(x, training=True))


def bounds(block):
    """Largest first weight of each linear map over Glorot's bound for it."""
    found = {}
    for weight in block.trainable_weights:
        if weight.path.endswith("kernel"):
            inputs = 2 if "attention_output" in weight.path else 1  # number of input axes
            rows, columns = (np.prod(x) for x in (weight.shape[:inputs], weight.shape[inputs:]))
            name = "/".join(weight.path.split("/")[1:-1])
            found[name] = np.abs(numpy(weight)).max() / np.sqrt(6 / (rows + columns))
    return found


def test_decoder_block_initial_weights_have_glorots_bound():
    # Glorot's bound, times 1/√2 for query, key and value.
    block = tfattn.TransformerDecoderBlock(4, 96)
    block.build((None, None, 64), (None, None, 64))
    for name, bound in bounds(block).items():
        smaller = name.split("/")[-1] in ("query", "key", "value")
        assert 0.98 < bound / (2**-0.5 if smaller else 1.0) <= 1.0, name
    assert len(bounds(block)) == 2 * 4 + 2


def test_encoder_block_parts_passed_in_keep_their_initializers():
    attention = tfattn.MultiHeadAttention(2, 5, kernel_initializer="glorot_uniform")
    feed_forward = tfattn.PositionwiseFeedForward(HIDDEN, kernel_initializer="ones")
    block = tfattn.TransformerEncoderBlock(attention=attention, feed_forward=feed_forward)
    block.build((None, None, 64))
    of_attention = {name: b for name, b in bounds(block).items() if "attention" in name}
    assert all(0.9 < bound <= 1.0 for bound in of_attention.values()) and len(of_attention) == 4
    assert all(
        np.all(dense.kernel == 1) for dense in (block.feed_forward.inner, block.feed_forward.outer)
    )


# Sublayers that are passed in.


def parts():
    """A block's arguments with nothing in it that is there by default."""
    attention = tfattn.MultiHeadAttention(
        H,
        4,
        value_dim=5,
        num_key_value_heads=1,
        score=tfattn.AdditiveScore(units=3),
        dropout=0.2,
        positions=tfattn.RotaryPositions(),
    )
    return {
        "attention": attention,
        "feed_forward": tfattn.PositionwiseFeedForward(HIDDEN, activation="tanh", dropout=0.1),
        "norm": keras.layers.RMSNormalization(epsilon=1e-3),
        "dropout": 0.3,
    }


KINDS = {
    "encoder": (tfattn.TransformerEncoderBlock, [(B, T, D)]),
    "decoder": (tfattn.TransformerDecoderBlock, [(B, T, D), (B, S, 13)]),
    "decoder without memory": (tfattn.TransformerDecoderBlock, [(B, T, D)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_block_copies_the_parts_passed_in(kind):
    cls, shapes = KINDS[kind]
    given = parts()
    names = ("attention", "feed_forward", "norm")
    before = {name: given[name].get_config() for name in names}
    block = cls(**given, seed=5, dtype="mixed_bfloat16")
    block.build(*shapes)
    for name in names:
        assert not given[name].built and not given[name].weights
        assert given[name].get_config() == before[name]
    # Templates are not sublayers of the block.
    assert all(layer.built for layer in block._flatten_layers())
    assert block.attention.num_key_value_heads == 1 and not block.attention.built
    assert block.norm.epsilon == 1e-3 and not block.norm.built
    attentions = [block.self_attention] + ([block.cross_attention] if len(shapes) == 2 else [])
    assert len({id(layer.score) for layer in attentions}) == len(attentions)
    seeded = [*attentions, block.feed_forward, block.self_attention_norm, block.feed_forward_norm]
    assert len({layer.seed for layer in seeded} - {None}) == len(seeded)
    norms = [block.self_attention_norm.norm, block.feed_forward_norm.norm]
    assert {layer.compute_dtype for layer in (*seeded, *norms)} == {"bfloat16"}


@pytest.mark.parametrize("kind", KINDS)
def test_block_copy_has_its_own_weights_name_and_seed(kind):
    cls, shapes = KINDS[kind]
    for block in (cls(H, HIDDEN, dropout=0.3), cls(**parts(), norm_first=True)):
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


@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
def test_encoder_block_with_any_layer_as_feed_forward_comes_back_from_its_file(tmp_path):
    sequence = keras.Sequential([keras.layers.Dense(5), keras.layers.Dense(D)])
    given = [sequence, TwoMaps()]
    blocks = [tfattn.TransformerEncoderBlock(H, feed_forward=layer) for layer in given]
    ids, x = np.array([[3, 5, 4, 0, 0], [1, 2, 4, 2, 0]]), keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(11, D, mask_zero=True)(x)
    model = keras.Model(x, blocks[1](blocks[0](embedded)))
    for block, layer in zip(blocks, given, strict=True):
        weights = block.feed_forward.trainable_weights
        assert len(weights) == len(block.trainable_weights) - 8 - 4 and not layer.built
    np.testing.assert_array_equal(model(ids)._keras_mask, ids != 0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(ids), model(ids))


def test_block_make_norm_gives_a_norm_like_its_own():
    given = tfattn.TransformerEncoderBlock(**parts())
    norm = given._make_norm("final_norm", "mixed_bfloat16")
    assert type(norm) is keras.layers.RMSNormalization and norm is not given.norm
    assert (norm.epsilon, norm.name, norm.compute_dtype) == (1e-3, "final_norm", "bfloat16")
    norm = tfattn.TransformerEncoderBlock(H, HIDDEN)._make_norm("final_norm")
    assert isinstance(norm, keras.layers.LayerNormalization) and norm.epsilon == 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("norm_first", "memory"), [(True, False), (False, True)])
def test_decoder_block_steps_equal_the_call(norm_first, memory):
    shapes = KINDS["decoder" if memory else "decoder without memory"][1]
    block = built(tfattn.TransformerDecoderBlock(norm_first=norm_first, **parts()), *shapes)
    x, *others = (draw(*shape, seed=i) for i, shape in enumerate(shapes))
    wanted, length = np.asarray(block(x, *others)), T + 2
    cache = block.new_cache(*others, max_length=length, **({} if memory else {"batch_size": B}))
    assert cache["keys"].shape == (B, 1, length, 4) and cache["values"].shape == (B, 1, length, 5)
    for t in range(T):
        bias = np.where(np.arange(length) <= t, 0.0, -np.inf)[None, None]
        output, cache = block.step(x[:, t : t + 1], t, cache, bias)
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-5)
    if memory:  # which has no positions
        assert type(block.self_attention.positions) is tfattn.RotaryPositions
        assert block.cross_attention.positions is None
