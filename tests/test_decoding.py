"""Greedy search over toy steps and over a Transformer."""

import gc
import inspect
import logging
import weakref

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.refusals import message
from tests.tensors import BACKEND, CALLS_A_TRACE, as_tensor, compiled, needs_compiling, numpy, tf
from tfattn import decoding
from tfattn.decoding import compiling, translation

pytestmark = pytest.mark.usefixtures("dense_path")

V = 11


def counting(tokens, position, state):
    """The token after n is n + 1."""
    return ops.one_hot(ops.take(tokens, position, axis=1) + 1, V), state


def scripted(tokens, position, state):
    """Writes the rows of `state`, whatever came before."""
    return ops.one_hot(ops.take(state, position, axis=1), V), state


def test_each_row_ends_with_its_end_token_and_padding_after_it():
    script = np.array([[4, 5, 3, 6, 7], [3, 4, 4, 4, 4], [4, 5, 6, 7, 8]])
    written = numpy(tfattn.greedy_search(scripted, as_tensor(script), batch_size=3, max_length=5))
    assert written.tolist() == [[4, 5, 3, 0, 0], [3, 0, 0, 0, 0], [4, 5, 6, 7, 8]]
    assert written.dtype == "int32"


def test_nothing_is_written_past_max_length():
    written = numpy(tfattn.greedy_search(counting, (), batch_size=2, max_length=7))
    assert written.tolist() == [[3, 0, 0, 0, 0, 0, 0]] * 2
    written = numpy(tfattn.greedy_search(counting, (), batch_size=2, max_length=3, end_id=10))
    assert written.tolist() == [[3, 4, 5]] * 2


@pytest.mark.slow
def test_each_row_may_have_its_own_max_length():
    script = np.array([[4, 5, 3, 6, 7], [4, 4, 4, 4, 4], [4, 5, 6, 7, 8], [5, 5, 5, 5, 5]])
    # with finished rows dropped, and with all kept
    for drop in (lambda search: search, compiled):
        search = drop(
            lambda: tfattn.greedy_search(scripted, as_tensor(script), 4, max_length=[4, 2, 5, 1])
        )
        assert numpy(search()).tolist() == [
            [4, 5, 3, 0, 0],
            [4, 4, 0, 0, 0],
            [4, 5, 6, 7, 8],
            [5, 0, 0, 0, 0],
        ]
    for bad in ([1, 2, 3], [1, 2, 3, 0], [1.0, 2.0, 3.0, 4.0]):
        with pytest.raises(
            ValueError, match="one for each row, `batch_size`=4 of them. Received: max_length"
        ):
            tfattn.greedy_search(scripted, script, 4, max_length=bad)


@pytest.mark.slow
def test_begin_end_and_padding_may_be_other_ids():
    written = tfattn.greedy_search(
        counting, (), batch_size=1, max_length=5, begin_id=5, end_id=8, padding_id=9
    )
    assert numpy(written).tolist() == [[6, 7, 8, 9, 9]]


def test_the_search_stops_when_every_row_has_ended():
    def step(tokens, position, steps):
        logits, _ = counting(tokens, position, ())
        return logits, steps + 1

    steps = ops.zeros((), "int32")
    _, steps = tfattn.greedy_search(step, steps, 2, 101, end_id=6, return_state=True)
    assert int(steps) == 4


@pytest.mark.tensorflow
def test_a_step_sees_what_is_written_and_padding_after_it():
    def step(tokens, position, state):
        seen.append((numpy(tokens).tolist(), int(position)))
        return counting(tokens, position, state)

    seen = []
    tf.config.run_functions_eagerly(True)
    try:
        tfattn.greedy_search(step, (), batch_size=1, max_length=3, end_id=5)
    finally:
        tf.config.run_functions_eagerly(False)
    assert seen == [([[2, 0, 0]], 0), ([[2, 3, 0]], 1), ([[2, 3, 4]], 2)]


def test_the_state_is_carried_from_step_to_step():
    def fibonacci(tokens, position, state):
        before, last = state["pair"]
        return ops.one_hot(before + last, 37), {"pair": (last, before + last)}

    state = {"pair": (as_tensor([1, 2]), as_tensor([3, 5]))}
    written = tfattn.greedy_search(fibonacci, state, batch_size=2, max_length=4, end_id=36)
    assert numpy(written).tolist() == [[4, 7, 11, 18], [7, 12, 19, 31]]


def test_the_state_is_returned_as_it_was_when_each_row_ended():
    def step(tokens, position, state):
        logits, _ = scripted(tokens, position, state["script"])
        return logits, {**state, "steps": state["steps"] + 1}

    script = np.array([[4, 5, 3, 6, 7], [3, 4, 4, 4, 4], [4, 5, 6, 7, 8]])
    state = {"script": script, "steps": np.zeros((3, 2), "int32"), "nothing": None, "word": "word"}
    written, state = decoding.greedy_search(
        step, state, batch_size=3, max_length=5, return_state=True
    )
    assert numpy(written).tolist() == [[4, 5, 3, 0, 0], [3, 0, 0, 0, 0], [4, 5, 6, 7, 8]]
    assert numpy(state["steps"]).tolist() == [[3, 3], [1, 1], [5, 5]]
    assert numpy(state["script"]).tolist() == script.tolist()
    assert state["nothing"] is None and state["word"] == "word"


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("state", [(), {}, None, {"cache": None}], ids=str)
def test_a_state_without_tensors_is_fine(state):
    assert numpy(tfattn.greedy_search(counting, state, 1, 3, end_id=5)).tolist() == [[3, 4, 5]]


class Counter:
    """A model of one method, that counts how often Python runs it."""

    def __init__(self):
        self.calls = 0

    def step(self, tokens, position, state):
        self.calls += 1
        return counting(tokens, position, state)


@needs_compiling
def test_one_trace_serves_many_prompts_of_a_shape():
    counter = Counter()
    prompts = np.random.default_rng(0).normal(size=(23, 3, 5)).astype("float32")
    tfattn.greedy_search(counter.step, as_tensor(prompts[0]), 3, 7)
    first = counter.calls
    assert first == CALLS_A_TRACE
    for prompt in prompts:
        tfattn.greedy_search(counter.step, as_tensor(prompt), 3, 7)
    assert counter.calls == first


@needs_compiling
@pytest.mark.slow
def test_another_shape_is_traced_once():
    counter, shapes = Counter(), [(2, 3), (3, 5), (2, 3), (5, 2), (3, 5)]
    for batch, length in shapes:
        tfattn.greedy_search(counter.step, ops.ones((batch, length)), batch, 7)
    assert counter.calls <= CALLS_A_TRACE * len(set(shapes))


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_few_traces_serve_prompts_of_every_shape():
    counter = Counter()
    tfattn.greedy_search(counter.step, ops.ones((2, 3)), 2, 7)
    first = counter.calls
    for batch, length in ((3, 5), (5, 7), (7, 2), (11, 13), (13, 11), (2, 3), (17, 19)):
        tfattn.greedy_search(counter.step, ops.ones((batch, length)), batch, 7)
    assert counter.calls <= 4 * first


@needs_compiling
@pytest.mark.slow
def test_other_settings_are_other_searches_of_the_same_step():
    counter = Counter()
    for max_length in (3, 5, 3, 5):
        written = tfattn.greedy_search(counter.step, (), 1, max_length, end_id=10)
        assert written.shape == (1, max_length)
    calls = counter.calls
    tfattn.greedy_search(counter.step, (), 1, 3, end_id=10)
    assert counter.calls == calls


@pytest.mark.tensorflow
@pytest.mark.slow
def test_few_traces_serve_every_max_length():
    counter = Counter()
    decoding.greedy_search(counter.step, (), 2, 7, end_id=10)
    first = counter.calls
    for max_length in (3, 5, 11, 1, 13, 23):
        written = decoding.greedy_search(counter.step, (), 2, max_length, end_id=10)
        assert numpy(written).tolist() == [([*range(3, 11)] + [0] * 20)[:max_length]] * 2
    assert counter.calls <= 2 * first


@pytest.mark.tensorflow
@pytest.mark.slow
def test_searches_of_many_models_warn_of_no_retracing():
    warnings = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    tf.get_logger().addHandler(handler)
    try:
        for _ in range(7):
            tfattn.greedy_search(Counter().step, (), 1, 3, end_id=10)
    finally:
        tf.get_logger().removeHandler(handler)
    assert warnings == []


def test_two_owners_of_one_method_do_not_share_a_search():
    class Constant:
        def __init__(self, token):
            self.token = token

        def step(self, tokens, position, state):
            return ops.one_hot(ops.full(ops.shape(tokens)[:1], self.token, "int32"), V), state

    owners = [Constant(5), Constant(7)]
    written = [numpy(tfattn.greedy_search(owner.step, (), 1, 2)).tolist() for owner in owners]
    assert written == [[[5, 5]], [[7, 7]]]


def decode_and_forget(make):
    """A weak reference to what `make` made, after a search with its step. Made in a frame of its
    own: a traced function's frame keeps a copy of its locals.
    """
    owner, state = make()
    tfattn.greedy_search(owner.step, state, 1, 3)
    return weakref.ref(owner)


def transformer_and_state():
    model = small_transformer()
    return model, model.encode(np.array([[4, 5]]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [lambda: (Counter(), ()), transformer_and_state], ids=["toy", "transformer"]
)
def test_a_search_does_not_keep_its_steps_owner_alive(make):
    alive = decode_and_forget(make)
    gc.collect()
    assert alive() is None


def test_the_batch_size_may_be_a_tensor():
    written = tfattn.greedy_search(counting, (), as_tensor(3), 2, end_id=9)
    assert numpy(written).tolist() == [[3, 4]] * 3


@pytest.mark.tensorflow
def test_a_search_works_inside_a_tf_function():
    @tf.function(input_signature=[tf.TensorSpec((None, None), "int32")])
    def search(script):
        return tfattn.greedy_search(scripted, script, ops.shape(script)[0], 3)

    assert numpy(search(as_tensor([[4, 3, 5], [6, 7, 8]]))).tolist() == [
        [4, 3, 0],
        [6, 7, 8],
    ]
    assert numpy(search(as_tensor([[9, 9, 9, 9]]))).tolist() == [[9, 9, 9]]


def test_a_search_works_inside_a_function_that_the_backend_compiles():
    search = compiled(lambda script: tfattn.greedy_search(scripted, script, 2, 3))
    script = as_tensor([[4, 3, 5], [6, 7, 8]])
    assert numpy(search(script)).tolist() == [[4, 3, 0], [6, 7, 8]]


def test_a_step_that_is_a_function_reads_its_variables_as_they_are_now():
    dense = keras.layers.Dense(V, kernel_initializer="zeros")
    dense.build((None, 2))

    def step(tokens, position, state):
        return dense(ops.ones((ops.shape(tokens)[0], 2))), state

    for token in (5, 7):
        dense.bias.assign(20.0 * np.eye(V)[token])
        assert numpy(tfattn.greedy_search(step, (), 1, 2)).tolist() == [[token] * 2]


class Best:
    """Writes one token, and does not say which variables it reads."""

    def __init__(self):
        self.token = keras.Variable(4, dtype="int32", trainable=False)

    def step(self, tokens, position, state):
        written = ops.broadcast_to(ops.reshape(self.token, (1,)), ops.shape(tokens)[:1])
        return ops.one_hot(written, V), state


def test_a_step_of_what_has_no_list_of_variables_reads_them_as_they_are_now():
    best = Best()
    for token in (4, 6):
        best.token.assign(token)
        assert numpy(tfattn.greedy_search(best.step, (), 2, 2)).tolist() == [[token] * 2] * 2


@pytest.mark.slow
def test_a_search_that_is_compiled_meets_new_weights():
    ids = np.array([[2, 4, 5, 0]])

    def searched(model):
        state = model.encode(ids, max_length=9)
        return numpy(tfattn.greedy_search(model.step, state, 1, 9)).tolist()

    keras.utils.set_random_seed(0)
    model = small_transformer()
    before = searched(model)
    other = type(model).from_config(model.get_config())
    searched(other)
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=weight.shape) for weight in model.get_weights()]
    fresh = type(model).from_config(model.get_config())
    fresh.build(((None, None), (None, None)))
    for each in (model, other, fresh):
        each.set_weights(weights)
    assert searched(model) == searched(other) == searched(fresh) != before


@pytest.mark.skipif(BACKEND != "torch", reason="about what PyTorch keeps for gradients")
def test_a_search_keeps_nothing_for_gradients():
    ids, model = np.array([[2, 4, 5, 0]]), small_transformer()
    state = translation.encoded(model, ids, 5)
    _, after = tfattn.greedy_search(model.step, state, 1, 5, return_state=True)
    leaves = [x for x in keras.tree.flatten((state, after)) if ops.is_tensor(x)]
    assert len(leaves) > 4 and not any(x.requires_grad for x in leaves)


@pytest.mark.skipif(BACKEND != "jax", reason="about weights made while JAX traces")
def test_the_step_of_a_model_that_is_not_built_is_refused():
    class Unbuilt(keras.Model):
        def step(self, tokens, position, state):
            pass

    expected = "decoding: `step` must belong to a model that is built"
    with pytest.raises(ValueError, match=expected):
        tfattn.greedy_search(Unbuilt().step, (), 1, 3)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_search_can_be_compiled_by_xla_and_exported(tmp_path):
    def search(script):
        return tfattn.greedy_search(scripted, script, 2, 3)

    script = as_tensor([[4, 3, 5], [6, 7, 8]])
    module = tf.Module()
    module.search = tf.function(search, input_signature=[tf.TensorSpec((2, 3), "int32")])
    tf.saved_model.save(module, tmp_path)
    for run in (tf.function(search, jit_compile=True), tf.saved_model.load(tmp_path).search):
        assert numpy(run(script)).tolist() == [[4, 3, 0], [6, 7, 8]]


def small_transformer(**options):
    return tfattn.Transformer(
        13, V, num_layers=2, width=10, num_heads=2, hidden_dim=14, dropout=0.3, **options
    )


def greedily_in_python(model, source, max_length):
    """One sentence at a time, one full forward pass a token: nothing that the search does."""
    sentences = []
    for row in source:
        row, written = row[row != 0][None], [2]
        while len(written) <= max_length and written[-1] != 3:
            logits = numpy(model((row, np.array([written])), training=False))
            written.append(int(logits[0, -1].argmax()))
        sentences.append((written[1:] + [0] * max_length)[:max_length])
    return sentences


@pytest.mark.slow
def test_greedy_search_writes_what_a_plain_loop_over_the_transformer_writes():
    model, rng = small_transformer(), np.random.default_rng(5)
    source = rng.integers(4, 13, size=(7, 7))
    for row, length in zip(source, rng.integers(2, 8, size=7), strict=True):
        row[length:] = 0
    model((source, source[:, :3] % V))
    # Larger matrices than a fresh model's and no padding written: sentences that differ, and of
    # which some end.
    model.set_weights([rng.normal(size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])
    bias = np.zeros(V, "float32")
    bias[0], bias[3] = -1e6, 3.0
    model.output_dense.bias.assign(bias)
    written = numpy(
        tfattn.greedy_search(model.step, model.encode(source), batch_size=7, max_length=7)
    ).tolist()
    assert written == greedily_in_python(model, source, 7)
    lengths = {7 - row.count(0) for row in written}
    assert len(lengths) > 2 and len({tuple(row) for row in written}) > 3


@pytest.mark.slow
def test_the_logits_of_a_step_are_those_of_the_full_forward_pass():
    model = small_transformer()
    source, target = (
        np.array([[4, 5, 6, 0, 0], [7, 8, 9, 10, 4]]),
        np.array([[2, 4, 5, 6], [2, 7, 9, 8]]),
    )
    full = numpy(model((source, target), training=False))
    state = model.encode(source)
    for position in range(4):
        # What lies after the position is not looked at.
        tokens = np.where(np.arange(4) <= position, target, 0)
        logits, state = model.step(tokens, position, state)
        np.testing.assert_allclose(logits, full[:, position], atol=1e-5)


@pytest.mark.parametrize(
    "argument, value, expected",
    [
        ("max_length", 0, "be a positive integer"),
        ("max_length", 2.0, "be a positive integer"),
        ("batch_size", 0, "be a positive integer"),
        ("batch_size", None, "be a positive integer"),
        ("begin_id", -1, "be an integer of at least 0"),
        ("end_id", -1, "be an integer of at least 0"),
        ("padding_id", 0.5, "be an integer of at least 0"),
    ],
)
def test_a_bad_argument_of_the_search_is_refused(argument, value, expected):
    def step(tokens, position, state):
        raise AssertionError("the search has begun")

    with pytest.raises(
        ValueError, match="^" + message("greedy_search", argument, expected, repr(value)) + "$"
    ):
        tfattn.greedy_search(step, (), **{"batch_size": 2, "max_length": 3, argument: value})


def test_a_step_that_cannot_be_called_is_refused():
    with pytest.raises(
        ValueError, match=r"^greedy_search: `step` must be callable.*\. Received: step=3$"
    ):
        tfattn.greedy_search(3, (), 2, 3)


def test_numbers_that_are_equal_but_of_other_types_are_other_traces_on_jax():
    layouts = [compiling._Layout.of([as_tensor([3]), one], None)[0] for one in (True, 1, 1.0)]
    assert len(set(layouts)) == 3
    assert [layout.join(["array"]) for layout in layouts] == [["array", x] for x in (1, 1, 1)]


def test_what_is_no_array_in_a_result_belongs_to_the_shapes_that_it_is_of():
    class Model:
        variables = ()

        def step(self):
            pass

    def with_its_length(step, settings, tokens):
        return {"tokens": tokens + 1, "length": ops.shape(tokens)[0]}

    model = Model()
    for length in (2, 3, 2):
        run = compiling.compiled(with_its_length, model.step, None)
        found = run(as_tensor(np.zeros(length, "int32")))
        assert int(found["length"]) == length and numpy(found["tokens"]).tolist() == [1] * length


@pytest.mark.parametrize("search", ["greedy_search", "sample", "beam_search"])
def test_what_a_stream_plans_has_the_arguments_and_defaults_of_its_search(search):
    function = getattr(decoding, search)
    plan = decoding.streaming._PLANS[function]
    assert inspect.signature(plan).parameters == inspect.signature(function).parameters
