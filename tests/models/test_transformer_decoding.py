"""Decoding step by step: cached steps equal a call of the decoder over all tokens."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.searches import eagerly
from tests.helpers.tensors import as_tensor, tf

SOURCE, TARGET, WIDTH, HEADS, HIDDEN = 13, 11, 10, 5, 14
B, S, T, L = 3, 7, 5, 6  # one position of the caches stays empty


def small(**options):
    """A Transformer with random weights, gains and biases."""
    sizes = {
        "num_layers": 1,
        "width": WIDTH,
        "num_heads": HEADS,
        "hidden_dim": HIDDEN,
        "dropout": 0.3,
    }
    model = tfattn.Transformer(SOURCE, **{"target_vocabulary_size": TARGET, **sizes, **options})
    model.build(((None, None), (None, None)))
    rng = np.random.default_rng(7)
    model.set_weights([rng.normal(size=w.shape) * 0.5 for w in model.get_weights()])
    return model


def pre_norm():
    return tfattn.TransformerEncoderBlock(HEADS, HIDDEN, dropout=0.3, norm_first=True)


def with_score(score=None, normalizer=None):
    """A block whose attentions have that score, and that normalizer."""
    attention = tfattn.MultiHeadAttention(HEADS, WIDTH // HEADS, score=score, normalizer=normalizer)
    return tfattn.TransformerEncoderBlock(hidden_dim=HIDDEN, dropout=0.3, attention=attention)


def sentences(seed=0):
    """Source ids with padding at the end, the last row only padding; targets with some 0s."""
    rng = np.random.default_rng(seed)
    source, target = rng.integers(1, SOURCE, (B, S)), rng.integers(1, TARGET, (B, T))
    source[0, 4:], source[2] = 0, 0
    target[0, 2], target[1, 3:], target[2, 0] = 0, 0, 0
    return source, target


def run(step, target, state):
    """Logits of every position, `(T, B, V)`; what lies after a position is garbage."""
    logits = []
    for position in range(target.shape[1]):
        tokens = np.where(np.arange(target.shape[1]) <= position, target, 9)
        scores, state = step(tokens, position, state)
        logits.append(np.asarray(scores, "float64"))
    return np.stack(logits)


OPTIONS = {
    "post-norm": {"num_layers": 2},
    "shared, pre-norm": {
        "num_layers": 2,
        "share_embeddings": True,
        "target_vocabulary_size": None,
        "block": pre_norm(),
    },
    "additive, sinks": {"block": with_score(tfattn.AdditiveScore(3), tfattn.AttentionSinks())},
    "bilinear, top k": {"block": with_score(tfattn.BilinearScore(), tfattn.TopKSoftmax(2))},
    "learned cosine": {"block": with_score(tfattn.CosineScore(trainable_temperature=True))},
    # may hide all keys from a query
    "boxcar": {"block": with_score(tfattn.KernelScore("boxcar", bandwidth=2.0))},
    "learned": {"positions": tfattn.LearnedPositionalEncoding(S, input_scale=WIDTH**0.5)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_transformer_steps_with_and_without_caches_are_its_call(name):
    """So are those without caches."""
    model = small(**OPTIONS[name])
    source, target = sentences()
    wanted = np.asarray(model((source, target))).swapaxes(0, 1)
    assert np.abs(wanted).max() > 1.0  # 1e-5 is a tight tolerance here
    cached = run(model.step, target, model.encode(source, max_length=L))
    np.testing.assert_allclose(cached, wanted, atol=1e-5)
    if name in ("post-norm", "learned"):
        plain = run(model.step, target, model.encode(source))
        np.testing.assert_allclose(plain, wanted, atol=1e-5)


@pytest.mark.slow
def test_transformer_steps_in_half_precision_agree():
    model = small(dtype="mixed_float16", block=with_score(tfattn.AdditiveScore(units=3)))
    source, target = sentences()
    state = model.encode(source, max_length=L)
    leaves = keras.tree.flatten(state["caches"])
    assert {keras.backend.standardize_dtype(leaf.dtype) for leaf in leaves} == {"float16"}
    wanted = run(model.step, target, model.encode(source))
    np.testing.assert_allclose(run(model.step, target, state), wanted, atol=0.02)


@pytest.mark.slow
def test_transformer_steps_with_nan_embedding_of_padding_are_finite():
    model = small(block=pre_norm())
    for stack in (model.encoder, model.decoder):
        table = stack.embedding.get_weights()[0]
        table[0] = np.nan
        stack.embedding.set_weights([table])
    source, target = sentences()
    wanted = run(model.step, target, model.encode(source))
    cached = run(model.step, target, model.encode(source, max_length=L))
    assert np.isfinite(cached).all()
    np.testing.assert_allclose(cached, wanted, atol=1e-5)


@pytest.mark.slow
def test_transformer_steps_with_nan_memory_under_the_mask_are_finite():
    decoder, (source, target) = small().decoder, sentences()
    memory = np.random.default_rng(1).normal(size=(B, S, WIDTH)).astype("float32")
    memory[source == 0] = np.nan
    wanted = np.asarray(decoder(target, memory, memory_mask=source != 0))
    caches = decoder.new_caches(memory, as_tensor(source != 0), L)
    for position in range(T):
        x, caches = decoder.step(as_tensor(target), position, caches, as_tensor(source != 0))
        np.testing.assert_allclose(x[:, 0], wanted[:, position], atol=1e-5)


@pytest.mark.slow
def test_transformer_step_changes_its_position_of_the_caches_alone():
    model, (source, target), head = small(num_layers=2), sentences(), WIDTH // HEADS
    state = model.encode(source, max_length=L)
    assert set(state) == {"caches", "memory_mask"} and len(state["caches"]) == 2
    for cache in state["caches"]:  # the projected memory, and the target's positions
        assert set(cache) == {"keys", "values", "memory_keys", "memory_values"}
        assert all(isinstance(cache[name], tfattn.decoding.Past) for name in ("keys", "values"))
        for name in ("memory_keys", "memory_values"):
            assert tuple(cache[name].shape) == (B, HEADS, S, head)
    _, after = model.step(target, 2, state)
    before, after = (dict(keras.tree.flatten_with_path(each)) for each in (state, after))
    changed = {path for path in before if before[path] is not after[path]}
    assert before.keys() == after.keys() and {path[2] for path in changed} == {"keys", "values"}
    for path in changed:
        assert tuple(before[path].shape) == (B, HEADS, L, head)
        assert not np.any(before[path])  # the state passed in is unchanged
        written = np.any(np.asarray(after[path]) != 0, axis=(0, 1, 3))
        assert written.tolist() == [at == 2 for at in range(L)]
    state = model.encode(source)
    assert set(state) == {"memory", "memory_mask"}
    _, after = model.step(target, 0, state)
    assert all(after[name] is state[name] for name in state)


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
def test_transformer_step_is_traced_once_for_all_lengths(jit):
    model, traces = small(block=pre_norm()), []
    source, target = sentences()

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None, None), "int32")])
    def encode(source):
        return model.encode(source, max_length=L)

    state = encode(as_tensor(source, "int32"))
    unknown = keras.tree.map_structure(_specification, model.encode(source, max_length=L))

    @tf.function(
        autograph=False,
        jit_compile=jit,
        input_signature=[tf.TensorSpec((None, None), "int32"), tf.TensorSpec((), "int32"), unknown],
    )
    def step(tokens, position, state):
        traces.append(1)
        return model.step(tokens, position, state)

    def compiled(tokens, position, state):
        return step(as_tensor(tokens, "int32"), as_tensor(position), state)

    wanted = run(model.step, target, model.encode(source))
    np.testing.assert_allclose(run(compiled, target, state), wanted, atol=1e-5)
    fewer = model.encode(source[:2, :5], max_length=L + 3)
    wanted = run(model.step, target[:2, :2], model.encode(source[:2, :5]))
    np.testing.assert_allclose(run(compiled, target[:2, :2], fewer), wanted, atol=1e-5)
    assert len(traces) == 1


def _specification(leaf):
    """Nothing known of batch and lengths."""
    return tf.TensorSpec([None if size in (B, S, L) else size for size in leaf.shape], leaf.dtype)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_transformer_step_computes_one_token():
    model, length = small(), 97
    source, target = sentences()

    def largest(state):
        tokens = tf.TensorSpec((B, length), "int32")
        step = tf.function(model.step, autograph=False)
        graph = step.get_concrete_function(tokens, tf.TensorSpec((), "int32"), state).graph
        shapes = [out.shape for op in graph.get_operations() for out in op.outputs]
        return max(shape.num_elements() or 0 for shape in shapes if shape.rank is not None)

    assert largest(model.encode(source, max_length=length)) == B * length * WIDTH
    assert largest(model.encode(source)) > 4 * B * length * WIDTH


@pytest.mark.slow
def test_beam_search_after_lora_computes_with_it():
    model = small()
    source = sentences()[0]

    def scores():
        state = model.encode(source, max_length=3)
        return ops.convert_to_numpy(tfattn.BeamSearch(num_beams=2)(model.step, state, B, 3).scores)

    before = scores()
    for block in model.decoder.blocks:
        inner = block.feed_forward.inner
        inner.enable_lora(2)
        inner.lora_kernel_b.assign(np.full(inner.lora_kernel_b.shape, 3.0))
    after = scores()
    assert np.abs(after - before).max() > 0.01
    with eagerly():
        np.testing.assert_allclose(scores(), after, rtol=1e-5)


@pytest.mark.slow
def test_transformer_step_refuses_more_tokens_than_its_caches_hold():
    model, (source, target) = small(), sentences()
    state = model.encode(source, max_length=T - 1)
    message = "`ids` must have at most the `max_length`=4 positions of the caches"
    with pytest.raises(ValueError, match=f"TransformerDecoder: {message}"):
        model.step(target, 0, state)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_transformer_step_beyond_its_caches_fails_in_a_graph():
    model = small()
    source, target = sentences()

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None, None), "int32")])
    def step(tokens):
        return model.step(tokens, ops.shape(tokens)[1] - 1, state)[0]

    state = model.encode(source, max_length=T)
    assert step(as_tensor(target, "int32")).shape == (B, TARGET)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 5 is not in \[0, 5\)"):
        step(as_tensor(np.pad(target, ((0, 0), (0, 1))), "int32"))
