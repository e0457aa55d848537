"""The whole encoder–decoder Transformer."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.tensors import BACKEND, as_tensor, both_ways, compiled, numpy

SOURCE, TARGET, WIDTH, HEADS, HIDDEN, LAYERS = 13, 11, 10, 5, 14, 2


def small(**options):
    arguments = {
        "num_layers": LAYERS,
        "width": WIDTH,
        "num_heads": HEADS,
        "hidden_dim": HIDDEN,
        "dropout": 0.3,
    }
    return tfattn.Transformer(SOURCE, **{"target_vocabulary_size": TARGET, **arguments, **options})


@functools.cache
def plain():
    """A model for tests that leave it as it is."""
    return small()


def pre_norm(dropout=0.3):
    return tfattn.TransformerEncoderBlock(HEADS, HIDDEN, dropout, norm_first=True)


def sentences(seed=0, batch=3, source_length=7, target_length=5):
    """Source and target ids with padding at the ends."""
    rng = np.random.default_rng(seed)
    source, target = (
        rng.integers(1, SOURCE, (batch, source_length)),
        rng.integers(1, TARGET, (batch, target_length)),
    )
    source[0, 4:], source[2, 6:], target[1, 3:] = 0, 0, 0
    return source, target


def test_transformer_defaults_are_the_papers_base_model():
    wanted = {"num_heads": 8, "hidden_dim": 2048, "dropout": 0.1}
    for public in (tfattn.TransformerEncoder, tfattn.TransformerDecoder):
        stack = public(11)
        assert stack.width == 512 and len(stack.blocks) == 6
        for part in (stack, *stack.blocks):
            assert {name: getattr(part, name) for name in wanted} == wanted
        assert not any(block.norm_first for block in stack.blocks)
    for public in (tfattn.Transformer, tfattn.CausalLM):
        config = public(11).get_config()
        assert config.items() >= {"num_layers": 6, "width": 512, **wanted}.items()


def test_transformer_has_as_many_parameters_as_the_formula():
    model = plain()
    model.build_for_any()
    attention = 4 * (WIDTH * WIDTH + WIDTH)
    network = WIDTH * HIDDEN + HIDDEN + HIDDEN * WIDTH + WIDTH
    norm = 2 * WIDTH
    encoder = LAYERS * (attention + network + 2 * norm)
    decoder = LAYERS * (2 * attention + network + 3 * norm)
    embeddings = (SOURCE + TARGET) * WIDTH
    assert model.count_params() == encoder + decoder + embeddings + WIDTH * TARGET + TARGET


@pytest.mark.slow
def test_transformer_with_norms_first_ends_each_stack_with_a_norm():
    post, pre = small(), small(block=pre_norm())
    post.build_for_any(), pre.build_for_any()
    assert pre.count_params() == post.count_params() + 2 * 2 * WIDTH
    memory = numpy(pre.encoder(sentences()[0]))
    np.testing.assert_allclose(memory.mean(-1), 0.0, atol=1e-5)
    np.testing.assert_allclose(memory.std(-1), 1.0, atol=1e-2)
    assert post.encoder.final_norm is None and pre.encoder.final_norm is not pre.decoder.final_norm


SHARED = {"share_embeddings": True, "target_vocabulary_size": None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"block": pre_norm(), **SHARED}], ids=["plain", "pre-norm, shared"]
)
def test_transformer_padded_differently_has_the_same_scores(options):
    model = small(**options)
    source, target = sentences()
    wanted = numpy(model((source, target)))
    longer = numpy(model((np.pad(source, ((0, 0), (0, 4))), np.pad(target, ((0, 0), (0, 2))))))
    np.testing.assert_allclose(longer[:, :5][target != 0], wanted[target != 0], atol=1e-5)
    alone = numpy(model((source[:1, :4], target[:1])))
    np.testing.assert_allclose(alone[0], wanted[0], atol=1e-5)


@pytest.mark.slow
def test_transformer_source_tokens_matter_to_every_target_position():
    model = plain()
    source, target = sentences()
    wanted = numpy(model((source, target)))
    for s in range(7):
        changed = source.copy()
        changed[1, s] = changed[1, s] % (SOURCE - 1) + 1
        output = numpy(model((changed, target)))
        assert np.all(np.any(output[1] != wanted[1], axis=-1))
        np.testing.assert_array_equal(output[[0, 2]], wanted[[0, 2]])


@pytest.mark.slow
def test_transformer_dropout_is_off_at_inference():
    model = plain()
    np.testing.assert_array_equal(model(sentences()), model(sentences(), training=False))
    assert np.any(model(sentences(), training=True) != model(sentences(), training=True))


@pytest.mark.slow
def test_transformer_embeddings_are_scaled_to_the_size_of_positions():
    model = tfattn.Transformer(101, num_layers=1, width=64, num_heads=2, hidden_dim=7, dropout=0.0)
    ids = np.arange(1, 101)[None]
    model((ids, ids))
    table = model.encoder.embedding.get_weights()[0]
    block = model.encoder.blocks[0]
    inputs = numpy(model.encoder.positions(model.encoder.embedding(ids)))
    positions = numpy(tfattn.SinusoidalPositionalEncoding()(np.zeros((1, 100, 64), "float32")))
    np.testing.assert_allclose(inputs - positions, 8.0 * table[ids], atol=1e-4)
    np.testing.assert_allclose(model.encoder(ids), block(inputs, mask=ids != 0), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("share", [False, True])
def test_transformer_embeddings_begin_with_padding_at_zero(share):
    model = tfattn.Transformer(
        101, width=64, num_layers=1, num_heads=2, hidden_dim=7, share_embeddings=share
    )
    logits = numpy(model((np.array([[3, 5, 0]]), np.array([[2, 4]]))))
    for stack in (model.encoder, model.decoder):
        table = stack.embedding.get_weights()[0]
        assert not table[0].any() and table[1:].all()
        np.testing.assert_allclose(table[1:].std(), 64**-0.5, rtol=0.05)
        np.testing.assert_allclose(table[1:].mean(), 0.0, atol=0.01)
    assert share == (not logits[..., 0].any())


@pytest.mark.slow
def test_transformer_shared_embeddings_stay_one_matrix_in_a_file(tmp_path):
    model, (source, target) = small(**SHARED), sentences()
    output = model((source, target))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        assert each.encoder.embedding is each.decoder.embedding
        shapes = [tuple(weight.shape) for weight in each.weights]
        assert [shape for shape in shapes if SOURCE in shape] == [(SOURCE, WIDTH)]
    np.testing.assert_array_equal(loaded((source, target)), output)
    x = numpy(model.decoder(target, model.encoder(source), memory_mask=source != 0))
    np.testing.assert_allclose(output, x @ model.encoder.embedding.get_weights()[0].T, atol=1e-4)


@pytest.mark.slow
def test_transformer_shared_embeddings_learn_from_all_three_places():
    model = small(**SHARED, dropout=0.0)
    source, target, wanted = np.array([[4, 5]]), np.array([[2, 6]]), np.array([[6, 3]])

    def loss():
        return tfattn.MaskedCrossentropy()(wanted, model((source, target)))

    loss()
    table = model.encoder.embedding.embeddings
    start, step = numpy(table), 0.005
    gradient = numpy(both_ways(loss, (), variables=[table])[1][0])
    # Id 4 is in the source, id 6 in the target and the labels, id 9 only in the softmax.
    for row in (4, 6, 9):
        direction = np.zeros_like(start)
        direction[row] = gradient[row] / np.linalg.norm(gradient[row])
        table.assign(start + step * direction)
        above = float(numpy(loss()))
        table.assign(start - step * direction)
        slope = (above - float(numpy(loss()))) / (2 * step)
        table.assign(start)
        np.testing.assert_allclose(slope, (gradient * direction).sum(), rtol=0.02)


def test_attention_weights_of_a_transformer_are_collected_by_path():
    model = plain()
    source, target = sentences()
    weights = tfattn.attention_weights(model, (source, target))
    name = model.name
    wanted = {f"{name}/encoder/block_{i}/self_attention": (3, HEADS, 7, 7) for i in range(LAYERS)}
    for i in range(LAYERS):
        wanted[f"{name}/decoder/block_{i}/self_attention"] = (3, HEADS, 5, 5)
        wanted[f"{name}/decoder/block_{i}/cross_attention"] = (3, HEADS, 5, 7)
    assert {path: w.shape for path, w in weights.items()} == wanted
    assert list(weights) == list(wanted)  # in the order of the calls
    real = source != 0
    for path, w in weights.items():
        assert isinstance(w, np.ndarray)
        np.testing.assert_allclose(w.sum(-1), 1.0, atol=1e-5)
        if path.endswith("cross_attention"):
            np.testing.assert_array_equal(w > 0, np.broadcast_to(real[:, None, None], w.shape))
        if "decoder" in path and path.endswith("self_attention"):
            assert not np.triu(w, k=1).any()


@pytest.mark.slow
def test_attention_weights_of_unbuilt_and_functional_models_come_once():
    model = small()
    assert len(tfattn.attention_weights(model, sentences())) == 3 * LAYERS
    inputs = (keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32"))
    functional = keras.Model(inputs, model(inputs))
    np.testing.assert_allclose(functional(sentences()), model(sentences()), atol=1e-6)
    assert len(tfattn.attention_weights(functional, sentences())) == 3 * LAYERS


def test_attention_weights_of_a_model_built_by_its_call_come_once():
    class Pooled(keras.Model):
        def __init__(self):
            super().__init__(name="pooled")
            self.dense = keras.layers.Dense(5)
            self.attention = tfattn.AdditiveAttention(units=3, name="attention")

        def call(self, inputs):
            x = self.dense(inputs)
            return self.attention(x, x)

    weights = tfattn.attention_weights(Pooled(), np.ones((2, 7, 3), "float32"))
    assert {path: w.shape for path, w in weights.items()} == {"pooled/attention": (2, 7, 7)}


@pytest.mark.slow
def test_transformer_encoder_and_decoder_stand_alone():
    encoder = tfattn.TransformerEncoder(SOURCE, LAYERS, WIDTH, HEADS, HIDDEN)
    positions = tfattn.LearnedPositionalEncoding(7, input_scale=WIDTH**0.5)
    decoder = tfattn.TransformerDecoder(TARGET, LAYERS, WIDTH, HEADS, HIDDEN, positions=positions)
    source, target = sentences()
    memory = encoder(source)
    np.testing.assert_array_equal(memory._keras_mask, source != 0)
    # Keras passes the implicit mask of the memory.
    by_hand = decoder(target, ops.copy(memory), memory_mask=source != 0)
    np.testing.assert_array_equal(decoder(target, memory), by_hand)
    assert np.any(decoder(target, ops.copy(memory)) != by_hand)


@pytest.mark.slow
def test_transformer_of_padding_alone_has_finite_scores_and_gradients():
    model = small(dropout=0.0)
    source, target = sentences()
    source[1], target[2] = 0, 0
    model((source, target))

    def loss():
        output = model((source, target))
        return tfattn.MaskedCrossentropy(0.1)(target, output), output

    (_, output), gradients = both_ways(loss, (), variables=model.trainable_weights, has_aux=True)
    assert np.isfinite(output).all()
    for gradient in gradients:
        assert np.isfinite(gradient).all()


def test_model_ids_with_fraction_are_refused_and_whole_floats_are_exact():
    ids = np.array([[257, 3, 0]])  # 257 is 256 in bfloat16
    sizes = {"num_layers": 1, "width": 4, "num_heads": 2, "dtype": "mixed_bfloat16"}
    model = tfattn.Transformer(300, hidden_dim=3, **sizes)
    language = tfattn.CausalLM(300, hidden_dim=3, **sizes)
    recurrent = tfattn.BahdanauSeq2Seq(300, width=4, units=3, dtype="mixed_bfloat16")
    memory = np.ones((1, 2, 4), "float32")
    for call in (
        lambda ids: model((ids, ids)),
        lambda ids: model.encode(ids)["memory"],
        lambda ids: model.decoder(ids=ids, memory=memory),
        language,
        lambda ids: language.encode(ids)["prompt"],
        lambda ids: recurrent.encode(ids)["memory"],  # which builds the model
        recurrent.encoder,
    ):
        wanted = numpy(call(ids))
        np.testing.assert_array_equal(numpy(call(ids.astype("float32"))), wanted)
        with pytest.raises(ValueError, match=r"must hold integers\. Received: \w+=3\.7"):
            call(np.where(ids == 3, 3.7, ids))
    if BACKEND == "torch":
        return
    # A graph cannot raise.
    output = compiled(language)(as_tensor(np.where(ids == 3, 3.7, ids), "float32"))
    assert np.isnan(numpy(output)[0, 1]).all()
