"""The recurrent translator with attention."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.recurrent import CountingScore, decoded, encoded, numbers
from tests.helpers.searches import eagerly
from tests.helpers.tensors import as_tensor, dtype_of, numpy, tf
from tfattn import BahdanauSeq2Seq

SOURCE, TARGET, WIDTH, UNITS, T = 13, 11, 5, 7, 5
CASES = {
    "gru": {},
    "lstm, two layers, general": {
        "cell": keras.layers.LSTMCell,
        "num_layers": 2,
        "score": tfattn.BilinearScore,
    },
    "any cell": {"cell": keras.layers.SimpleRNNCell},
    "dot, forward only, shared": {
        "score": lambda: tfattn.DotProductScore(scale=1.0),
        "bidirectional": False,
        "share_embeddings": True,
        "target_vocabulary_size": SOURCE,
    },
}


def small(**options):
    """A translator whose weights are moved off the zeros that some begin with."""
    defaults = {
        "target_vocabulary_size": TARGET,
        "width": WIDTH,
        "units": UNITS,
        "dropout": 0.3,
    }
    options = {**defaults, **options}
    if callable(options.get("score")) and not isinstance(options["score"], tfattn.Score):
        options["score"] = options["score"]()
    model = BahdanauSeq2Seq(SOURCE, **options)
    model.build_for_any()
    generator = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.3 * generator.normal(size=weight.shape).astype("float32"))
    return model


@functools.cache
def shared(case="gru"):
    """A translator for tests that leave it as it is."""
    return small(**CASES[case])


def sentences(seed=0, batch=3, source_length=7, target_length=T):
    """Source and target ids with padding at the ends."""
    rng = np.random.default_rng(seed)
    source = rng.integers(1, SOURCE, (batch, source_length)).astype("int32")
    target = rng.integers(1, TARGET, (batch, target_length)).astype("int32")
    source[0, 4:], source[2, 6:], target[1, 3:] = 0, 0, 0
    return source, target


def steps(model, source, target, max_length=None):
    """Logits of every position, one step after the other, and the last state."""
    state, logits = model.encode(source, max_length, alignments=max_length is not None), []
    for position in range(target.shape[1]):
        scores, state = model.step(target, position, state)
        logits.append(scores)
    return np.stack(logits, axis=1), state


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case != "any cell"])
def test_seq2seq_is_the_encoder_bridge_decoder_and_output_of_the_oracle(case):
    model, (source, target) = shared(case), sentences()
    logits = model((source, target))
    assert bool(model.bridges) == model.bidirectional
    if model.output_dense is None:
        matrix, bias = numbers(model.encoder.embedding.embeddings).T, 0.0
    else:
        matrix, bias = (numbers(weight) for weight in model.output_dense.weights)
    for row in range(len(source)):
        memory, states = encoded(model.encoder, source[row])
        if model.bridges:
            states = keras.tree.pack_sequence_as(
                states,
                [
                    np.tanh(state @ numbers(bridge.kernel) + numbers(bridge.bias))
                    for state, bridge in zip(keras.tree.flatten(states), model.bridges, strict=True)
                ],
            )
        x, _, _ = decoded(model.decoder, target[row], memory, source[row] != 0, states)
        np.testing.assert_allclose(logits[row], x @ matrix + bias, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_seq2seq_steps_have_the_logits_of_teacher_forcing(case):
    logits, _ = steps(shared(case), *sentences())
    np.testing.assert_allclose(logits, shared(case)(sentences()), atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_seq2seq_steps_compile_into_one_loop_for_all_lengths():
    model = small(cell=keras.layers.LSTMCell)

    @tf.function(input_signature=[tf.TensorSpec((None, None), "int32")] * 2)
    def last(source, target):
        def step(position, state, logits):
            logits, state = model.step(target, position, state)
            return position + 1, state, logits

        length = ops.shape(target)[1]
        start = (
            as_tensor(0),
            model.encode(source, 9, alignments=True),
            ops.zeros((ops.shape(source)[0], TARGET)),
        )
        return tf.while_loop(lambda position, *_: position < length, step, start)[1:]

    for lengths in ((7, 5), (9, 3)):
        source, target = sentences(0, 3, *lengths)
        state, logits = last(source, target)
        np.testing.assert_allclose(logits, model((source, target))[:, -1], atol=1e-5)
        np.testing.assert_allclose(
            numpy(state["alignments"][:, lengths[1] - 1]).sum(-1), target[:, -1] != 0, atol=1e-6
        )


def test_seq2seq_step_reads_its_token_alone():
    model, (source, target) = shared(), sentences()
    before = model.encode(source, max_length=T, alignments=True)
    _, after = model.step(target, 0, before)
    assert before.keys() == after.keys()
    for name in ("memory", "keys", "memory_mask"):
        assert after[name] is before[name]
    for name in ("hidden", "alignments"):
        keras.tree.assert_same_structure(after[name], before[name])
        for new, old in zip(
            keras.tree.flatten(after[name]), keras.tree.flatten(before[name]), strict=True
        ):
            assert new.shape == old.shape and new.dtype == old.dtype and np.any(new != old)
    other = np.full_like(target, 3)
    other[:, 1] = target[:, 1]
    wanted, _ = model.step(target, 1, after)
    np.testing.assert_array_equal(model.step(other, 1, after)[0], wanted)


@pytest.mark.slow
def test_seq2seq_prepares_keys_once_a_sentence():
    model = small(score=CountingScore())
    for run in (lambda: model(sentences()), lambda: steps(model, *sentences())):
        model.score.calls = 0
        run()
        assert model.score.calls == 1


@pytest.mark.slow
def test_seq2seq_steps_write_their_alignments_row_by_row():
    model, (source, target) = shared(), sentences()
    [(path, wanted)] = tfattn.attention_weights(model, (source, target)).items()
    assert path == f"{model.name}/decoder"
    _, state = steps(model, source, target, max_length=T + 2)
    alignments = numpy(state["alignments"])
    np.testing.assert_allclose(alignments[:, :T], wanted, atol=1e-6)
    np.testing.assert_array_equal(alignments[:, T:], 0.0)
    np.testing.assert_allclose(wanted.sum(-1), target != 0, atol=1e-6)
    np.testing.assert_array_equal(wanted > 0, (target != 0)[..., None] & (source != 0)[:, None])
    assert "alignments" not in model.encode(source, max_length=T)


@pytest.mark.slow
def test_seq2seq_alignments_of_beams_come_with_them():
    model, (source, _) = small(), sentences()
    for weight in model.trainable_weights:  # large weights, so that the beams differ
        weight.assign(4 * weight)
    begin, end = 1, 2
    state = model.encode(source, max_length=T, alignments=True)
    options = {"begin_id": begin, "end_id": end, "return_state": True}
    search = tfattn.BeamSearch(num_beams=4, num_results=2)
    with eagerly():
        found = search(model.step, state, len(source), T, **options)
    tokens = numpy(found.tokens)  # (B, 2, T)
    kept = numpy(found.state["alignments"]).reshape(len(source), 2, T, -1)
    # two different hypotheses
    assert len({tuple(row) for row in tokens.reshape(-1, T)}) > len(source)
    for rank in range(2):
        first = np.full((len(source), 1), begin)
        target_in = np.concatenate([first, tokens[:, rank, :-1]], 1).astype("int32")
        (wanted,) = tfattn.attention_weights(model, (source, target_in)).values()
        written = np.cumsum(np.pad(tokens[:, rank, :-1] == end, ((0, 0), (1, 0))), 1) == 0
        np.testing.assert_allclose(kept[:, rank][written], wanted[written], atol=1e-5)


@pytest.mark.slow
def test_seq2seq_defaults_are_the_papers_and_unbuilt_it_encodes():
    wanted = {"width": 620, "units": 1000, "num_layers": 1, "bidirectional": True}
    assert BahdanauSeq2Seq(5).get_config().items() >= {**wanted, "cell": "GRUCell"}.items()
    model, (source, target) = BahdanauSeq2Seq(SOURCE, width=WIDTH, units=UNITS), sentences()
    state = model.encode(source)
    np.testing.assert_allclose(
        model.step(target, 0, state)[0], model((source, target))[:, 0], atol=1e-6
    )


@pytest.mark.slow
def test_seq2seq_shared_embeddings_stay_one_matrix_in_files(tmp_path):
    options = {**CASES["lstm, two layers, general"], "share_embeddings": True}
    model = small(**options, target_vocabulary_size=None)
    wanted, _ = steps(model, *sentences())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    model.save_weights(tmp_path / "model.weights.h5")
    other = small(**options, target_vocabulary_size=None)
    other.set_weights([0 * weight for weight in other.get_weights()])
    other.load_weights(tmp_path / "model.weights.h5")
    for each in (model, loaded, other):
        assert each.encoder.embedding is each.decoder.embedding
        assert each.output_dense is None
        assert sum(SOURCE in weight.shape for weight in each.weights) == 1
        np.testing.assert_array_equal(steps(each, *sentences())[0], wanted)


@pytest.mark.slow
def test_seq2seq_dropout_is_off_at_inference_and_follows_the_seed():
    model, same = small(seed=3), small(seed=3)
    np.testing.assert_array_equal(model(sentences()), model(sentences(), training=False))
    same.set_weights(model.get_weights())
    first = model(sentences(), training=True)
    np.testing.assert_array_equal(same(sentences(), training=True), first)
    assert np.any(model(sentences(), training=True) != first)


@pytest.mark.slow
def test_seq2seq_in_half_precision_agrees_with_float32():
    model, (source, target) = small(dtype="mixed_float16"), sentences()
    model.set_weights(shared().get_weights())
    half = model((source, target))
    assert dtype_of(half) == model.compute_dtype
    np.testing.assert_allclose(numpy(half), shared()((source, target)), atol=0.02)
    logits, state = steps(model, source, target, max_length=T)
    np.testing.assert_allclose(numpy(logits), numpy(half), atol=0.005)
    assert {dtype_of(leaf) for leaf in keras.tree.flatten(state["hidden"])} == {model.compute_dtype}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: BahdanauSeq2Seq(5, cell=keras.layers.LSTMCell(7)),
            "BahdanauSeq2Seq: `cell` must be a class of Keras",
        ),
        (
            lambda: BahdanauSeq2Seq(5, 7, share_embeddings=True),
            "`target_vocabulary_size` must be `source_vocabulary_size`=5 where embeddings are "
            "shared. Received: .*=7",
        ),
        (
            lambda: small(score=tfattn.DotProductScore()),
            "`key width` must be as wide as `query`, 7",
        ),
        (
            lambda: shared().encode(sentences()[0], alignments=True),
            "BahdanauSeq2Seq: `max_length` must be a positive integer",
        ),
        (
            lambda: shared().encode(sentences()[0], 3, alignments=1),
            "BahdanauSeq2Seq: `alignments` must be True or False",
        ),
    ],
)
def test_seq2seq_refuses_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
