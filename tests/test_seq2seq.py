"""The recurrent translator with attention."""

import inspect

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.recurrent import CountingScore
from tests.repeated import Repeated
from tests.tensors import as_tensor, both_ways, dtype_of, needs_xla, numpy, tf
from tfattn import BahdanauSeq2Seq

SOURCE, TARGET, WIDTH, UNITS, T = 13, 11, 5, 7, 5
CASES = {
    "gru": {},
    "lstm, two layers": {"cell": keras.layers.LSTMCell, "num_layers": 2},
    "any cell": {"cell": keras.layers.SimpleRNNCell},
    "dot, forward only": {
        "score": lambda: tfattn.DotProductScore(scale=1.0),
        "bidirectional": False,
    },
    "general": {"score": tfattn.BilinearScore},
    "shared": {"share_embeddings": True, "target_vocabulary_size": SOURCE},
}


def small(**options):
    options = {
        "target_vocabulary_size": TARGET,
        "width": WIDTH,
        "units": UNITS,
        "dropout": 0.3,
        **options,
    }
    if callable(options.get("score")) and not isinstance(options["score"], tfattn.Score):
        options["score"] = options["score"]()
    model = BahdanauSeq2Seq(SOURCE, **options)
    model(sentences())
    generator = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.3 * generator.normal(size=weight.shape).astype("float32"))
    return model


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
def test_the_alignments_of_beams_come_with_them():
    model, (source, _) = small(), sentences()
    for weight in model.trainable_weights:  # far from each other, so that the beams part
        weight.assign(4 * weight)
    begin, end = 1, 2
    state = model.encode(source, max_length=T, alignments=True)
    options = {
        "num_beams": 4,
        "num_results": 2,
        "begin_id": begin,
        "end_id": end,
        "return_state": True,
    }
    found = tfattn.beam_search(model.step, state, len(source), T, **options)
    tokens = keras.ops.convert_to_numpy(found.tokens)  # (B, 2, T)
    kept = keras.ops.convert_to_numpy(found.state["alignments"]).reshape(len(source), 2, T, -1)
    # not one hypothesis, twice
    assert len({tuple(row) for row in tokens.reshape(-1, T)}) > len(source)
    for rank in range(2):
        target_in = np.concatenate(
            [np.full((len(source), 1), begin), tokens[:, rank, :-1]], 1
        ).astype("int32")
        (wanted,) = tfattn.attention_weights(model, (source, target_in)).values()
        written = np.cumsum(np.pad(tokens[:, rank, :-1] == end, ((0, 0), (1, 0))), 1) == 0
        np.testing.assert_allclose(kept[:, rank][written], wanted[written], atol=1e-5)


def test_the_default_sizes_are_the_papers():
    defaults = {
        name: p.default
        for name, p in inspect.signature(BahdanauSeq2Seq.__init__).parameters.items()
    }
    wanted = {
        "width": 620,
        "units": 1000,
        "num_layers": 1,
        "bidirectional": True,
        "cell": keras.layers.GRUCell,
    }
    assert {name: defaults[name] for name in wanted} == wanted


def test_the_number_of_parameters_is_the_formulas():
    model = small()

    def gru(inputs):
        return 3 * UNITS * (inputs + UNITS + 2)

    embeddings = (SOURCE + TARGET) * WIDTH
    encoder = 2 * gru(WIDTH)
    attention = UNITS * UNITS + 2 * UNITS * UNITS + UNITS
    decoder = gru(WIDTH + 2 * UNITS) + (UNITS + 2 * UNITS + WIDTH) * WIDTH + WIDTH
    bridge = 2 * UNITS * UNITS + UNITS
    counted = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
    assert counted == embeddings + encoder + attention + decoder + bridge + WIDTH * TARGET + TARGET


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("case", CASES)
def test_steps_give_the_logits_of_teacher_forcing_at_every_position(case):
    model = small(**CASES[case])
    source, target = sentences()
    logits, _ = steps(model, source, target)
    np.testing.assert_allclose(logits, model((source, target)), atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_steps_compile_into_one_loop_for_all_lengths():
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


def test_what_a_step_does_not_change_comes_back_as_the_same_object():
    model = small()
    source, target = sentences()
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


@pytest.mark.slow
def test_keys_are_prepared_once_a_sentence_and_not_at_each_step():
    model = small(score=CountingScore())
    for run in (lambda: model(sentences()), lambda: steps(model, *sentences())):
        model.score.calls = 0
        run()
        assert model.score.calls == 1


@pytest.mark.slow
def test_a_step_looks_at_its_own_token_alone():
    model = small()
    source, target = sentences()
    _, state = model.step(target, 0, model.encode(source))
    wanted, _ = model.step(target, 1, state)
    other = np.full_like(target, 3)
    other[:, 1] = target[:, 1]
    np.testing.assert_array_equal(model.step(other, 1, state)[0], wanted)


@pytest.mark.slow
def test_steps_write_their_alignments_row_by_row():
    model = small()
    source, target = sentences()
    [(path, wanted)] = tfattn.attention_weights(model, (source, target)).items()
    assert path == f"{model.name}/decoder"
    _, state = steps(model, source, target, max_length=T + 2)
    alignments = numpy(state["alignments"])
    np.testing.assert_allclose(alignments[:, :T], wanted, atol=1e-6)
    np.testing.assert_array_equal(alignments[:, T:], 0.0)
    np.testing.assert_allclose(wanted.sum(-1), target != 0, atol=1e-6)
    np.testing.assert_array_equal(wanted > 0, (target != 0)[..., None] & (source != 0)[:, None])
    assert "alignments" not in model.encode(source, max_length=T)


def test_an_unbuilt_model_encodes():
    model, (source, target) = BahdanauSeq2Seq(SOURCE, width=WIDTH, units=UNITS), sentences()
    state = model.encode(source)
    np.testing.assert_allclose(
        model.step(target, 0, state)[0], model((source, target))[:, 0], atol=1e-6
    )


@pytest.mark.slow
def test_greedy_search_writes_what_steps_by_hand_write():
    model = small()
    source, _ = sentences()
    tokens = np.full((3, 1), 2, "int32")
    for _ in range(6):
        best = numpy(model((source, tokens))[:, -1]).argmax(-1)
        tokens = np.concatenate([tokens, best[:, None].astype("int32")], axis=1)
    for state in (model.encode(source), model.encode(source, max_length=6)):
        written = tfattn.greedy_search(model.step, state, batch_size=3, max_length=6, end_id=TARGET)
        np.testing.assert_array_equal(written, tokens[:, 1:])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_padding_a_batch_differently_changes_no_real_scores(case):
    model = small(**CASES[case])
    source, target = sentences()
    wanted = numpy(model((source, target)))
    longer = numpy(model((np.pad(source, ((0, 0), (0, 4))), np.pad(target, ((0, 0), (0, 2))))))
    # Products of other sizes are summed in another order.
    rounding = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(longer[:, :T][target != 0], wanted[target != 0], **rounding)
    alone = numpy(model((source[:1, :4], target[:1])))
    np.testing.assert_allclose(alone[0], wanted[0], **rounding)


@pytest.mark.slow
def test_every_source_token_matters_to_every_target_position():
    model = small()
    source, target = sentences()
    wanted = numpy(model((source, target)))
    for s in range(7):
        changed = source.copy()
        changed[1, s] = changed[1, s] % (SOURCE - 1) + 1
        output = numpy(model((changed, target)))
        # Padding looks at nothing.
        np.testing.assert_array_equal(np.any(output[1] != wanted[1], axis=-1), target[1] != 0)
        np.testing.assert_array_equal(output[[0, 2]], wanted[[0, 2]])


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("cell", [keras.layers.GRUCell, keras.layers.LSTMCell])
def test_a_bidirectional_encoders_last_states_pass_through_a_tanh_map(cell):
    model = small(cell=cell, num_layers=2)
    _, states = model.encoder(sentences()[0], return_state=True)
    hidden = keras.tree.flatten(model.encode(sentences()[0])["hidden"])
    assert len(hidden) == len(model.bridges) == 2 * len(states[0])
    for got, state, bridge in zip(hidden, keras.tree.flatten(states), model.bridges, strict=True):
        kernel, bias = bridge.get_weights()
        np.testing.assert_allclose(got, np.tanh(numpy(state) @ kernel + bias), atol=1e-6)


def test_a_forward_encoders_last_states_are_the_decoders_first():
    model = small(cell=keras.layers.LSTMCell, bidirectional=False)
    _, states = model.encoder(sentences()[0], return_state=True)
    hidden = model.encode(sentences()[0])["hidden"]
    keras.tree.map_structure(np.testing.assert_array_equal, hidden, states)


@pytest.mark.slow
def test_shared_embeddings_are_one_matrix_also_in_a_saved_model(tmp_path):
    model = small(share_embeddings=True, target_vocabulary_size=None)
    wanted = numpy(model(sentences()))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        assert each.encoder.embedding is each.decoder.embedding
        assert each.output_dense is None
        assert sum(SOURCE in weight.shape for weight in each.weights) == 1
    np.testing.assert_array_equal(loaded(sentences()), wanted)
    memory, states = model.encoder(sentences()[0], return_state=True)
    start = model.encode(sentences()[0])["hidden"]
    x = numpy(model.decoder(sentences()[1], memory, initial_state=start))
    np.testing.assert_allclose(wanted, x @ model.encoder.embedding.get_weights()[0].T, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["lstm, two layers", "any cell", "dot, forward only"])
def test_a_loaded_model_decodes_as_the_saved_one(case, tmp_path):
    model = small(**CASES[case])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    wanted, _ = steps(model, *sentences())
    got, _ = steps(loaded, *sentences())
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.slow
def test_weights_alone_load_into_a_new_model(tmp_path):
    model, other = small(num_layers=2), small(num_layers=2, seed=5)
    other.encoder.embedding.set_weights([0 * model.encoder.embedding.get_weights()[0]])
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other(sentences()), model(sentences()))


def fitted(compiled, steps, epochs, **options):
    """What `fit` tells of a model that learns to turn three words around."""
    keras.utils.set_random_seed(0)
    model = BahdanauSeq2Seq(TARGET, width=8, units=16, seed=0, **options)
    rng = np.random.default_rng(0)
    words = rng.integers(4, TARGET, (64, 3))
    target_in = np.pad(words[:, ::-1], ((0, 0), (1, 0)), constant_values=2)
    target_out = np.pad(words[:, ::-1], ((0, 0), (0, 1)), constant_values=3)
    batches = Repeated((words, target_in), target_out, 32, steps)
    model.compile(
        keras.optimizers.Adam(0.01),
        tfattn.MaskedCrossentropy(),
        metrics=[tfattn.MaskedAccuracy()],
        **compiled,
    )
    return model.fit(batches, epochs=epochs, shuffle=False, verbose=0).history


@pytest.mark.slow
def test_fit_learns_to_turn_words_around():
    history = fitted({"jit_compile": False}, steps=60, epochs=2, dropout=0.05)
    assert np.isfinite(history["loss"]).all()
    assert history["masked_accuracy"][-1] > 0.9


@needs_xla
@pytest.mark.slow
def test_fit_under_xla_takes_the_same_steps():
    roads = {"run_eagerly": True}, {"jit_compile": True}
    wanted, got = (fitted(road, steps=1, epochs=4, bidirectional=False)["loss"] for road in roads)
    assert wanted[-1] < wanted[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-4)


@pytest.mark.slow
def test_dropout_is_off_at_inference_and_follows_the_seed():
    model, same = small(seed=3), small(seed=3)
    np.testing.assert_array_equal(model(sentences()), model(sentences(), training=False))
    same.set_weights(model.get_weights())
    first = model(sentences(), training=True)
    np.testing.assert_array_equal(same(sentences(), training=True), first)
    assert np.any(model(sentences(), training=True) != first)


@pytest.mark.slow
def test_a_sentence_of_padding_alone_gives_finite_scores_and_gradients():
    model = small(dropout=0.0)
    source, target = sentences()
    source[1], target[2] = 0, 0

    def loss():
        output = model((source, target))
        return tfattn.MaskedCrossentropy(0.1)(target, output), output

    (_, output), gradients = both_ways(loss, (), variables=model.trainable_weights, has_aux=True)
    assert np.isfinite(output).all()
    for gradient in gradients:
        assert np.isfinite(gradient).all()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_agrees_with_float32_step_by_step_too(policy):
    wide, model = small(), small(dtype=policy)
    model.set_weights(wide.get_weights())
    source, target = sentences()
    tolerance = 0.1 if policy == "mixed_bfloat16" else 0.02
    half = model((source, target))
    assert dtype_of(half) == model.compute_dtype
    np.testing.assert_allclose(numpy(half), wide((source, target)), atol=tolerance)
    logits, state = steps(model, source, target, max_length=T)
    np.testing.assert_allclose(numpy(logits), numpy(half), atol=tolerance / 4)
    assert {dtype_of(leaf) for leaf in keras.tree.flatten(state["hidden"])} == {model.compute_dtype}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: BahdanauSeq2Seq(0),
            "BahdanauSeq2Seq: `source_vocabulary_size` must be a positive integer",
        ),
        (
            lambda: BahdanauSeq2Seq(5, 0),
            "BahdanauSeq2Seq: `target_vocabulary_size` must be a positive integer",
        ),
        (
            lambda: BahdanauSeq2Seq(5, width=0),
            "BahdanauSeq2Seq: `width` must be a positive integer",
        ),
        (
            lambda: BahdanauSeq2Seq(5, units=0),
            "BahdanauSeq2Seq: `units` must be a positive integer",
        ),
        (
            lambda: BahdanauSeq2Seq(5, num_layers=0),
            "BahdanauSeq2Seq: `num_layers` must be a positive integer",
        ),
        (
            lambda: BahdanauSeq2Seq(5, cell=keras.layers.LSTMCell(7)),
            "BahdanauSeq2Seq: `cell` must be a class of Keras",
        ),
        (
            lambda: BahdanauSeq2Seq(5, bidirectional="yes"),
            "BahdanauSeq2Seq: `bidirectional` must be True or False",
        ),
        (
            lambda: BahdanauSeq2Seq(5, dropout=1),
            r"BahdanauSeq2Seq: `dropout` must be a number in \[0, 1\)",
        ),
        (lambda: BahdanauSeq2Seq(5, score="additive"), "`score` must be a score layer"),
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
            lambda: small().encode(sentences()[0], max_length=0),
            "`max_length` must be a positive integer",
        ),
        (
            lambda: small().encode(sentences()[0], alignments=True),
            "`max_length` must be a positive integer",
        ),
        (
            lambda: small().encode(sentences()[0], 3, alignments=1),
            "`alignments` must be True or False",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
