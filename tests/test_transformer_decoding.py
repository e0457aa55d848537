"""The Transformer step by step: the cached road computes what the whole decoder computes over all
tokens.
"""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.tensors import as_tensor, tf

SOURCE, TARGET, WIDTH, HEADS, HIDDEN = 13, 11, 10, 5, 14
B, S, T, L = 3, 7, 5, 6  # one position of the caches stays empty


def small(**options):
    """A Transformer with weights that no initializer gives: norms and biases are not 1 and 0
    either.
    """
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
    """Source ids with padding at their ends, the last one nothing else; target ids with id 0 in all
    sorts of places.
    """
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


def tensors(cache):
    """A block's cache, the target's keys and values without the word that they are a past."""
    assert {name for name, part in cache.items() if isinstance(part, tfattn.decoding.Past)} == {
        "keys",
        "values",
    }
    return {
        name: part.tensor if isinstance(part, tfattn.decoding.Past) else part
        for name, part in cache.items()
    }


OPTIONS = {
    "post-norm": {"num_layers": 2},
    "pre-norm": {"num_layers": 2, "block": pre_norm()},
    "shared": {"share_embeddings": True, "target_vocabulary_size": None, "block": pre_norm()},
    "additive": {"block": with_score(tfattn.AdditiveScore(units=3))},
    "bilinear": {"block": with_score(tfattn.BilinearScore())},
    "cosine": {"block": with_score(tfattn.CosineScore(0.5))},
    "kernel": {"block": with_score(tfattn.KernelScore("gaussian", bandwidth=2.0))},
    "soft cap": {"block": with_score(tfattn.SoftCapScore(1.5))},
    "normalized dot": {"block": with_score(tfattn.NormalizedDotProductScore())},
    "learned cosine": {"block": with_score(tfattn.CosineScore(trainable_temperature=True))},
    "sinks": {"block": with_score(normalizer=tfattn.AttentionSinks())},
    "sparsemax": {"block": with_score(normalizer=tfattn.Sparsemax())},
    "top k": {"block": with_score(normalizer=tfattn.TopKSoftmax(2))},
    # may leave a query without keys
    "boxcar": {"block": with_score(tfattn.KernelScore("boxcar", bandwidth=2.0))},
    "learned": {"positions": tfattn.LearnedPositionalEncoding(S, input_scale=WIDTH**0.5)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_cached_and_uncached_logits_agree_at_every_step(name):
    model = small(**OPTIONS[name])
    source, target = sentences()
    wanted = run(model.step, target, model.encode(source))
    assert np.abs(wanted).max() > 1.0  # 1e-5 is a tight tolerance here
    np.testing.assert_allclose(
        run(model.step, target, model.encode(source, max_length=L)), wanted, atol=1e-5
    )


def test_cached_steps_are_the_full_forward_pass():
    model = small(num_layers=2)
    source, target = sentences()
    cached = run(model.step, target, model.encode(source, max_length=T))
    np.testing.assert_allclose(cached.swapaxes(0, 1), model((source, target)), atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_agrees_within_its_rounding(policy):
    model = small(dtype=policy, block=with_score(tfattn.AdditiveScore(units=3)))
    source, target = sentences()
    state = model.encode(source, max_length=L)
    leaves = keras.tree.flatten(state["caches"])
    assert {keras.backend.standardize_dtype(leaf.dtype) for leaf in leaves} == {policy[6:]}
    tolerance = 0.02 if policy == "mixed_float16" else 0.15
    np.testing.assert_allclose(
        run(model.step, target, state),
        run(model.step, target, model.encode(source)),
        atol=tolerance,
    )


def test_padding_a_batch_differently_changes_no_logits():
    model = small()
    source, target = sentences()
    wanted = run(model.step, target, model.encode(source, max_length=L))
    longer = model.encode(np.pad(source, ((0, 0), (0, 4))), max_length=L + 3)
    np.testing.assert_allclose(
        run(model.step, np.pad(target, ((0, 0), (0, 2))), longer)[:T], wanted, atol=1e-5
    )
    alone = model.encode(source[:1, :4], max_length=L)
    np.testing.assert_allclose(run(model.step, target[:1], alone), wanted[:, :1], atol=1e-5)


@pytest.mark.parametrize("block", [{}, {"block": pre_norm()}], ids=["post-norm", "pre-norm"])
def test_a_broken_embedding_of_padding_reaches_no_logits(block):
    model = small(**block)
    for stack in (model.encoder, model.decoder):
        table = stack.embedding.get_weights()[0]
        table[0] = np.nan
        stack.embedding.set_weights([table])
    source, target = sentences()
    wanted = run(model.step, target, model.encode(source))
    cached = run(model.step, target, model.encode(source, max_length=L))
    assert np.isfinite(cached).all()
    np.testing.assert_allclose(cached, wanted, atol=1e-5)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_memory_under_the_mask_reaches_no_step(broken):
    decoder, (source, target) = small().decoder, sentences()
    memory = np.random.default_rng(1).normal(size=(B, S, WIDTH)).astype("float32")
    memory[source == 0] = broken
    wanted = np.asarray(decoder(target, memory, memory_mask=source != 0))
    caches = decoder.new_caches(memory, as_tensor(source != 0), L)
    for position in range(T):
        x, caches = decoder.step(as_tensor(target), position, caches, as_tensor(source != 0))
        np.testing.assert_allclose(x[:, 0], wanted[:, position], atol=1e-5)


def test_a_broken_token_shows_in_its_row_from_there_on():
    model = small()
    source, target = sentences()
    table = model.decoder.embedding.get_weights()[0]
    target[target == 9] = 8
    target[1, 1] = 9
    wanted = run(model.step, target, model.encode(source, max_length=L))
    table[9] = np.nan
    model.decoder.embedding.set_weights([table])
    cached = run(model.step, target, model.encode(source, max_length=L))
    assert np.isnan(cached[1:, 1]).all()
    np.testing.assert_array_equal(cached[:, [0, 2]], wanted[:, [0, 2]])
    np.testing.assert_array_equal(cached[0], wanted[0])


def test_the_state_has_room_for_the_target_and_holds_the_memory_once_projected():
    model = small(num_layers=2)
    source, target = sentences()
    state = model.encode(source, max_length=L)
    assert set(state) == {"caches", "memory_mask"} and len(state["caches"]) == 2
    head = WIDTH // HEADS
    for cache in map(tensors, state["caches"]):
        shapes = {name: tuple(leaf.shape) for name, leaf in cache.items()}
        of_target, of_memory = (B, HEADS, L, head), (B, HEADS, S, head)
        assert shapes == {
            "keys": of_target,
            "values": of_target,
            "memory_keys": of_memory,
            "memory_values": of_memory,
        }
        assert not np.any(cache["keys"]) and not np.any(cache["values"])
    _, after = model.step(target, 2, state)
    for before, cache in zip(
        map(tensors, state["caches"]), map(tensors, after["caches"]), strict=True
    ):
        for name in ("keys", "values"):
            written = np.any(np.asarray(cache[name]) != 0, axis=(0, 1, 3))
            assert written.tolist() == [at == 2 for at in range(L)]
            assert not np.any(before[name])  # the state that was given is as it was
    assert set(model.encode(source)) == {"memory", "memory_mask"}


def test_what_does_not_change_is_handed_back_as_the_same_object():
    model = small()
    source, target = sentences()
    for given in (model.encode(source, max_length=L), model.encode(source)):
        _, after = model.step(target, 0, given)
        before, after = (dict(keras.tree.flatten_with_path(state)) for state in (given, after))
        assert before.keys() == after.keys()
        changed = {path[2] for path in before if before[path] is not after[path]}
        assert changed == ({"keys", "values"} if "caches" in given else set())


@pytest.mark.tensorflow
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("jit", [False, True])
def test_one_trace_serves_all_positions_batches_and_lengths(jit):
    model, traces = small(block=pre_norm()), []
    source, target = sentences()
    state = model.encode(source, max_length=L)
    unknown = keras.tree.map_structure(_specification, state)

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


@pytest.mark.tensorflow
def test_encoding_works_inside_a_tf_function_of_unknown_shapes():
    model = small()
    source, target = sentences()

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None, None), "int32")])
    def encode(source):
        return model.encode(source, max_length=L)

    state = encode(as_tensor(source, "int32"))
    wanted = run(model.step, target, model.encode(source))
    np.testing.assert_allclose(run(model.step, target, state), wanted, atol=1e-5)


def test_an_unbuilt_model_encodes_with_caches():
    model = tfattn.Transformer(
        SOURCE, num_layers=1, width=WIDTH, num_heads=HEADS, hidden_dim=HIDDEN
    )
    source, target = sentences()
    cached = run(model.step, target, model.encode(source, max_length=L))
    np.testing.assert_allclose(cached, run(model.step, target, model.encode(source)), atol=1e-5)


@pytest.mark.tensorflow
def test_a_step_computes_one_token_and_no_more_than_the_caches_hold():
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


def test_a_search_after_lora_computes_with_it():
    model = tfattn.Transformer(13, num_layers=1, width=8, num_heads=2, hidden_dim=16)
    source = np.array([[4, 5, 6, 3], [7, 8, 3, 0]], "int32")

    def scores():
        state = model.encode(source, max_length=5)
        return ops.convert_to_numpy(tfattn.beam_search(model.step, state, 2, 5).scores)

    before = scores()
    np.testing.assert_array_equal(scores(), before)
    for block in model.decoder.blocks:
        block.feed_forward.inner.enable_lora(2)
        inner = block.feed_forward.inner
        inner.lora_kernel_b.assign(np.full(inner.lora_kernel_b.shape, 3.0))
    after = scores()
    assert np.abs(after - before).max() > 0.01
    state = model.encode(source, max_length=5)
    alone = tfattn.beam_search(lambda *arguments: model.step(*arguments), state, 2, 5).scores
    np.testing.assert_allclose(ops.convert_to_numpy(alone), after, rtol=1e-5)


def test_greedy_search_writes_the_same_with_and_without_caches():
    model, rng = small(), np.random.default_rng(5)
    # Large matrices and nothing that all positions share: sentences that differ, and of which some
    # end.
    weights = [(w.path, w.shape) for w in model.weights]
    model.set_weights(
        [rng.normal(size=n) if len(n) > 1 else np.full(n, "gamma" in path) for path, n in weights]
    )
    source = rng.integers(4, SOURCE, (17, S))
    source[5:9, 3:] = 0
    plain = tfattn.greedy_search(model.step, model.encode(source), batch_size=17, max_length=L)
    cached = tfattn.greedy_search(
        model.step, model.encode(source, max_length=L), batch_size=17, max_length=L
    )
    np.testing.assert_array_equal(cached, plain)
    assert len(np.unique(plain, axis=0)) > 5 and np.any(plain == 3)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("groups", [1, HEADS])
def test_steps_of_a_decoder_block_are_its_call(norm_first, groups):
    attention = tfattn.MultiHeadAttention(HEADS, WIDTH // HEADS, num_key_value_heads=groups)
    block = tfattn.TransformerDecoderBlock(
        hidden_dim=HIDDEN, norm_first=norm_first, attention=attention
    )
    block.build((None, None, WIDTH), (None, None, 13))
    rng = np.random.default_rng(3)
    block.set_weights([rng.normal(size=w.shape) * 0.5 for w in block.get_weights()])
    inputs, memory = (
        rng.normal(size=(B, T, WIDTH)).astype("float32"),
        rng.normal(size=(B, S, 13)).astype("float32"),
    )
    wanted = np.asarray(block(inputs, memory))
    cache = block.new_cache(memory, L)
    assert cache["keys"].shape == (B, groups, L, WIDTH // HEADS)
    for t in range(T):
        bias = np.where(np.arange(L) <= t, 0.0, -np.inf)[None, None]
        output, cache = block.step(inputs[:, t : t + 1], t, cache, bias, np.zeros((1, 1, S)))
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-5)


@pytest.mark.parametrize("max_length", [0, -1, 2.5, True, "six"])
def test_a_length_that_is_no_positive_int_is_refused(max_length):
    with pytest.raises(
        ValueError,
        match="Transformer: `max_length` must be a positive integer. Received: max_length=",
    ):
        small().encode(sentences()[0], max_length=max_length)


def test_more_tokens_than_there_is_room_for_are_refused():
    model = small()
    source, target = sentences()
    state = model.encode(source, max_length=T - 1)
    with pytest.raises(
        ValueError,
        match="TransformerDecoder: `ids` must have at most the `max_length`=4 positions "
        "of its caches",
    ):
        model.step(target, 0, state)
    message = (
        r"greedy_search: `state` must have room for `max_length`=5 positions in each `Past`"
        r".*\(3, 5, 4, 2\)"
    )
    with pytest.raises(ValueError, match=message):
        tfattn.greedy_search(model.step, state, B, T)


@pytest.mark.tensorflow
def test_a_position_beyond_the_caches_fails_where_no_shape_could_tell():
    model = small()
    source, target = sentences()

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None, None), "int32")])
    def step(tokens):
        return model.step(tokens, ops.shape(tokens)[1] - 1, state)[0]

    state = model.encode(source, max_length=T)
    assert step(as_tensor(target, "int32")).shape == (B, TARGET)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 5 is not in \[0, 5\)"):
        step(as_tensor(np.pad(target, ((0, 0), (0, 1))), "int32"))


def test_caches_longer_than_the_learned_positions_are_refused():
    model = small(positions=tfattn.LearnedPositionalEncoding(S))
    with pytest.raises(ValueError, match="TransformerDecoder: `max_length` must be at most 7"):
        model.encode(sentences()[0], max_length=S + 1)
