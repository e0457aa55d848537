"""Greedy search over toy steps, and what all searches share: one compiled loop, which may be part
of a function of the caller's.
"""

import functools
import gc
import logging
import weakref

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.searches import IDS, eagerly, noting, tables, transformer, trigram
from tests.helpers.tensors import (
    BACKEND,
    CALLS_A_TRACE,
    as_tensor,
    needs_compiling,
    numpy,
    tf,
)
from tfattn import decoding, rules
from tfattn.decoding import compiling
from tfattn.decoding.translate import encoded

pytestmark = pytest.mark.usefixtures("dense_path")

V = 11


def counting(tokens, position, state):
    """The token after n is n + 1."""
    return ops.one_hot(ops.take(tokens, position, axis=1) + 1, V), state


def scripted(tokens, position, state):
    """Writes the rows of `state`, whatever came before."""
    return ops.one_hot(ops.take(state, position, axis=1), V), state


@eagerly()
def test_greedy_search_with_a_max_length_for_each_row_ends_each_there():
    script = [[4, 5, 3, 6, 7], [4, 4, 4, 4, 4], [4, 5, 6, 7, 8], [5, 5, 5, 5, 5], [3, 4, 5, 6, 7]]
    written = numpy(tfattn.GreedySearch()(scripted, as_tensor(script), 5, [4, 2, 5, 1, 5]))
    assert written.tolist() == [
        [4, 5, 3, 0, 0],
        [4, 4, 0, 0, 0],
        [4, 5, 6, 7, 8],
        [5, 0, 0, 0, 0],
        [3, 0, 0, 0, 0],
    ]
    assert written.dtype == "int32"
    message = "one for each row, with `batch_size`=5. Received: max_length"
    for bad in ([1, 2, 3], [1, 2, 3, 0, 1], [1.0, 2.0, 3.0, 4.0, 5.0]):
        with pytest.raises(ValueError, match=message):
            tfattn.GreedySearch()(scripted, np.ones((5, 5)), 5, max_length=bad)


@eagerly()
def test_greedy_search_with_other_special_ids_uses_them():
    ids = {"begin_id": 5, "end_id": 8, "padding_id": 9}
    assert numpy(tfattn.GreedySearch()(counting, (), 1, 5, **ids)).tolist() == [[6, 7, 8, 9, 9]]


@pytest.mark.tensorflow
@eagerly()
def test_search_step_sees_what_is_written_and_padding_after_it():
    def step(tokens, position, state):
        seen.append((numpy(tokens).tolist(), int(position)))
        return counting(tokens, position, state)

    seen = []
    tfattn.GreedySearch()(step, (), batch_size=1, max_length=3, end_id=5)
    assert seen == [([[2, 0, 0]], 0), ([[2, 3, 0]], 1), ([[2, 3, 4]], 2)]


PLAIN = {
    "greedy": tfattn.GreedySearch(),
    "beams": lambda *of, **ids: tfattn.BeamSearch(num_beams=2)(*of, **ids).tokens[:, 0],
    "sample": tfattn.Sampling(temperature=0.01, seed=0),
    "stream": lambda step, state, _, length, **ids: np.pad(
        tokens := [*tfattn.GreedySearch().stream(step, state, length, **ids)],
        (0, length - len(tokens)),
    )[None],
}


@pytest.mark.parametrize("search", PLAIN)
def test_search_never_chooses_padding(search):
    """The best tokens are 4, padding, padding and the end; after padding 5 and 6 come next."""
    scores = np.zeros((4, 7), "float32")
    scores[[0, 1, 2, 3], [4, 0, 0, 3]] = 30
    scores[[1, 2], [5, 6]] = 20

    def step(tokens, position, state):
        return ops.take(scores, ops.full_like(tokens[:, 0], position), axis=0), state

    with eagerly():
        assert numpy(PLAIN[search](step, (), 1, 6)).tolist() == [[4, 5, 6, 3, 0, 0]]
        # A padding that is the end token is a choice: it ends.
        ids = {"end_id": 0, "padding_id": 0}
        assert numpy(PLAIN[search](step, (), 1, 4, **ids)).tolist() == [[4, 0, 0, 0]]


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("search", PLAIN)
def test_search_of_nan_scores_is_refused_by_row_and_place(search, broken):
    def step(tokens, position, bad):
        here = ops.logical_and(bad, position == 2)
        here = ops.logical_and(here[:, None], ops.arange(V) == 7)
        return ops.where(here, broken, counting(tokens, position, None)[0]), bad

    bad = [True] if search == "stream" else [False, True, False]
    expected = rf"`step` must .*; row {bad.index(True)} has them after 2 tokens. Received: step="
    with eagerly(), pytest.raises(ValueError, match=expected):
        PLAIN[search](step, ops.convert_to_tensor(bad), len(bad), 5, end_id=9)


@eagerly()
def test_search_returns_the_state_of_each_row_at_its_end():
    def step(tokens, position, state):
        logits, _ = scripted(tokens, position, state["script"])
        rows, all_steps = state["steps"]
        return logits, {**state, "steps": (rows + 1, all_steps + 1)}

    script = np.array([[4, 5, 3, 6, 7], [3, 4, 4, 4, 4], [4, 5, 6, 7, 3]])
    steps = np.zeros((3, 2), "int32"), ops.zeros((), "int32")
    state = {"script": script, "steps": steps, "nothing": None, "word": "word"}
    written, state = decoding.GreedySearch()(step, state, 3, 9, return_state=True)
    assert numpy(written)[:, :5].tolist() == [[4, 5, 3, 0, 0], [3, 0, 0, 0, 0], [4, 5, 6, 7, 3]]
    assert numpy(state["steps"][0]).tolist() == [[3, 3], [1, 1], [5, 5]]
    assert int(state["steps"][1]) == 5  # where every row has ended, the search stops
    assert numpy(state["script"]).tolist() == script.tolist()
    assert state["nothing"] is None and state["word"] == "word"


@eagerly()
def test_search_state_without_tensors_and_batch_size_of_a_tensor_are_fine():
    for state in ((), {}, None, {"cache": None}):
        written = tfattn.GreedySearch()(counting, state, as_tensor(2), 3, end_id=5)
        assert numpy(written).tolist() == [[3, 4, 5]] * 2


# One compiled loop.


@needs_compiling
@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda number: decoding.Sampling(
            temperature=0.5 + number,
            top_p=0.5 + 0.2 * number,
            top_k=4,
            seed=[None, 2, keras.random.SeedGenerator(3)][number],
            rules=[
                rules.RepetitionPenalty(1.0 + number),
                rules.TargetPrefix([number + 3, 3]),
                rules.ForbiddenTokens([[3, number + 4], 6]),
                rules.MinLength(number),
            ],
        ),
        lambda number: decoding.BeamSearch(length_penalty=0.6 * number),
    ],
    ids=["sample with rules", "beams"],
)
def test_search_with_another_state_or_number_is_no_new_trace(make):
    calls = []
    step = noting(trigram, calls)
    for number in range(3):
        make(number)(step, tables(number, 2, 7), 2, 7, **IDS)
    assert len(calls) == CALLS_A_TRACE


@needs_compiling
@pytest.mark.slow
def test_search_with_another_rule_or_another_order_is_another_trace():
    calls, length = [], rules.MinLength(2)
    step = noting(counting, calls)
    pairs, triples = (rules.NoRepeatNgrams(n) for n in (2, 3))  # each compares n positions
    different = ([length, pairs], [pairs, length], [length, triples])
    for some in (*different, *different):
        decoding.GreedySearch(rules=some)(step, (), 3, 7, end_id=9)
    assert len(calls) == len(different) * CALLS_A_TRACE


@needs_compiling
@pytest.mark.slow
@pytest.mark.parametrize(
    "search",
    [decoding.GreedySearch(), decoding.BeamSearch(jit_compile=True)],
    ids=["greedy", "beams under XLA"],
)
def test_search_of_prompts_of_every_shape_takes_a_few_traces(search):
    calls = []
    step = noting(counting, calls)
    # On JAX each shape has its own trace.
    shapes = [(2, 3, 7), (3, 5, 3), (5, 7, 11), (7, 2, 1), (2, 3, 7), (3, 5, 3)]
    for batch, prompt, length in shapes:
        found = search(step, ops.ones((batch, prompt)), batch, length, end_id=10)
        tokens = numpy(found.tokens[:, 0] if hasattr(found, "tokens") else found)
        assert tokens.tolist() == [([*range(3, 11)] + [0] * 3)[:length]] * batch
    assert len(calls) <= (4 if BACKEND == "jax" else 2) * CALLS_A_TRACE


@pytest.mark.slow
@pytest.mark.tensorflow
def test_search_is_compiled_by_xla_on_request_alone():
    def step(tokens, position, state):
        rows = tf.numpy_function(len, [tokens], tf.int64)  # which XLA cannot compile
        return ops.one_hot(ops.full((tf.cast(rows, "int32"),), 4), 8), state

    assert numpy(tfattn.GreedySearch()(step, (), 1, 2)).tolist() == [[4, 4]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="XLA"):
        tfattn.GreedySearch(jit_compile=True)(step, (), 1, 2)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_search_of_many_models_warns_of_no_retracing():
    warnings = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    tf.get_logger().addHandler(handler)
    try:
        for _ in range(6):
            tfattn.GreedySearch()(Best().step, (), 1, 3)
    finally:
        tf.get_logger().removeHandler(handler)
    assert warnings == []


class Best:
    """Writes one token, and has no list of the variables that it reads."""

    def __init__(self, token=4):
        self.token = keras.Variable(token, dtype="int32", trainable=False)

    def step(self, tokens, position, state):
        written = ops.broadcast_to(ops.reshape(self.token, (1,)), ops.shape(tokens)[:1])
        return ops.one_hot(written, V), state


class BestLayer(keras.layers.Layer):
    """A `Best` with a list of its variables."""

    def __init__(self):
        super().__init__()
        self.token = self.add_weight(shape=(), dtype="int32", trainable=False)
        self.built = True

    step = Best.step


@pytest.mark.slow
def test_search_once_compiled_reads_variables_as_they_are_now():
    best, layer = Best(), BestLayer()
    for step in (best.step, lambda *arguments: best.step(*arguments), layer.step):
        for token in (4, 6):
            (layer if step == layer.step else best).token.assign(token)
            assert numpy(tfattn.GreedySearch()(step, (), 2, 2)).tolist() == [[token] * 2] * 2


class Chosen(keras.layers.Layer):
    """Writes a token that is no variable: an attribute, a tuple, and of a layer of its own."""

    def __init__(self, inner=None):
        super().__init__()
        self.k, self.ks, self.inner, self.built = 4, (0,), inner, True
        self.traces = 0

    def step(self, tokens, position, state):
        self.traces += 1
        inner = [] if self.inner is None else [self.inner.k, *self.inner.ks]
        token = sum([self.k, *self.ks, *inner])
        return ops.one_hot(ops.full_like(tokens[:, 0], token), 23), state

    encode = step


@pytest.mark.slow
@needs_compiling
@pytest.mark.filterwarnings("ignore:decoding. the search was compiled")
@pytest.mark.parametrize("search", ["greedy", "stream"])
def test_search_sees_python_state_that_changes_on_a_model(search):
    model, alone = Chosen(Chosen()), Chosen()
    ensemble = decoding.Ensemble([alone])
    steps = [
        (model.step, ()),
        (lambda *arguments: model.step(*arguments), ()),
        (ensemble.step, {"models": ((),)}),
    ]
    for change in (lambda each: None, change_k, change_ks, change_k):
        for each in (model, model.inner, alone):
            change(each)
            for step, state in steps:
                token = sum([alone.k, *alone.ks])
                if state == ():
                    token = sum([model.k, *model.ks, model.inner.k, *model.inner.ks])
                assert numpy(PLAIN[search](step, state, 1, 2)).tolist() == [[token] * 2]


def change_k(each):
    each.k += 1


def change_ks(each):
    each.ks = (*each.ks, 2)


def change_number(each):
    each.k = np.int64(each.k + 1)


def steps_of(model):
    method = model.step
    return {
        "closure over a method": lambda *arguments: method(*arguments),
        "partial": functools.partial(model.step),
        "default": lambda tokens, position, state, model=model: model.step(tokens, position, state),
        "name assigned later": lambda *arguments: (model.step(*arguments), lambda: later)[0],
    }
    later = None


@pytest.mark.slow
@needs_compiling
@pytest.mark.parametrize("kind", steps_of(Chosen()))
def test_search_sees_python_state_of_a_model_that_a_step_holds(kind):
    model = Chosen()
    step = steps_of(model)[kind]
    for _ in range(3):
        assert numpy(tfattn.GreedySearch()(step, (), 1, 2)).tolist() == [[int(model.k)] * 2]
        change_number(model)


@pytest.mark.slow
@needs_compiling
def test_search_compiled_for_each_call_warns_of_the_attribute_that_changed():
    model = Chosen()
    for _ in range(3):
        tfattn.GreedySearch()(model.step, (), 1, 2)
        model.calls = getattr(model, "calls", 0) + 1
    with pytest.warns(UserWarning, match="compiled 4 times.* changed: calls. Name"):
        tfattn.GreedySearch()(model.step, (), 1, 2)


@pytest.mark.slow
@needs_compiling
def test_search_of_a_model_that_trains_in_between_is_no_new_trace(tmp_path):
    model = Trained()
    model.compile("sgd", "mse")
    traces = []
    for _ in range(4):
        tfattn.GreedySearch()(model.step, (), 1, 2)
        traces.append(model.traces)
        model.fit(np.ones((2, 3)), np.ones((2, 1)), verbose=0)
        model.predict(np.ones((2, 3)), verbose=0)
        model.save_weights(tmp_path / "model.weights.h5")
        model.load_weights(tmp_path / "model.weights.h5")
    assert traces == [CALLS_A_TRACE] * 4


class Trained(keras.Sequential):
    """A model of layers that Keras lists, whose step counts its traces."""

    def __init__(self):
        super().__init__([keras.layers.Input((3,)), keras.layers.Dense(1)])
        self.traces = 0

    def step(self, tokens, position, state):
        self.traces += 1
        return self(ops.ones_like(tokens[:, :1], "float32") * ops.ones((1, 3))) * ops.ones(V), state


@eagerly()
def test_search_of_two_owners_of_one_method_is_not_shared():
    owners = [Best(5), Best(7)]
    written = [numpy(tfattn.GreedySearch()(owner.step, (), 1, 2)).tolist() for owner in owners]
    assert written == [[[5, 5]], [[7, 7]]]


def decode_and_forget():
    """A weak reference to an owner, after a search with its step. Made in a frame of its own: a
    traced function's frame keeps a copy of its locals.
    """
    owner = Best()
    tfattn.GreedySearch()(owner.step, (), 1, 3)
    return weakref.ref(owner)


@pytest.mark.slow
def test_search_does_not_keep_the_owner_of_its_step_alive():
    alive = decode_and_forget()
    gc.collect()
    assert alive() is None


@pytest.mark.tensorflow
@pytest.mark.slow
def test_search_of_unknown_shapes_works_in_a_function_and_its_export(tmp_path):
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec((None, None), "int32")])
    def search(script):
        return tfattn.GreedySearch()(scripted, script, ops.shape(script)[0], 3)

    module.search = search
    tf.saved_model.save(module, tmp_path)
    for run in (search, tf.saved_model.load(tmp_path).search):
        script = as_tensor([[4, 3, 5], [6, 7, 8]])
        assert numpy(run(script)).tolist() == [[4, 3, 0], [6, 7, 8]]
        assert numpy(run(as_tensor([[9, 9, 9, 9]]))).tolist() == [[9, 9, 9]]


@pytest.mark.skipif(BACKEND != "torch", reason="about what PyTorch keeps for gradients")
def test_search_on_pytorch_keeps_nothing_for_gradients():
    ids, model = np.array([[2, 4, 5, 0]]), transformer()
    state = encoded(model, ids, 5)
    _, after = tfattn.GreedySearch()(model.step, state, 1, 5, return_state=True)
    leaves = [x for x in keras.tree.flatten((state, after)) if ops.is_tensor(x)]
    assert len(leaves) > 4 and not any(x.requires_grad for x in leaves)


@pytest.mark.skipif(BACKEND != "jax", reason="about weights made while JAX traces")
def test_search_of_an_unbuilt_model_on_jax_is_refused():
    class Unbuilt(keras.Model):
        def step(self, tokens, position, state):
            pass

    expected = "decoding: `step` must belong to a model that is built"
    with pytest.raises(ValueError, match=expected):
        tfattn.GreedySearch()(Unbuilt().step, (), 1, 3)


@pytest.mark.skipif(BACKEND != "jax", reason="about JAX, to which a number is an array")
def test_compiled_result_tells_equal_numbers_of_other_types_apart():
    def same(step, settings, given):
        return {"tokens": given["tokens"] + 1, "type": type(given["one"]).__name__}

    for one in (True, 1, 1.0):
        given = {"tokens": as_tensor([3]), "one": one}
        found = compiling.compiled(same, counting, None)(given)["type"]
        assert found == type(one).__name__


def test_compiled_result_without_arrays_belongs_to_its_shapes():
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


COMPILED = {
    "greedy": decoding.GreedySearch(jit_compile=True),
    "sampling": decoding.Sampling(seed=3, jit_compile=True),
    "beams": decoding.BeamSearch(num_beams=2, jit_compile=True),
    "pooled": decoding.PooledBeamSearch(num_beams=2, jit_compile=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_search_compiled_by_xla_refuses_nan_of_any_token(name):
    """XLA's maximum of numbers leaves NaN out."""

    def step(tokens, position, token):
        here = ops.logical_and(position == 2, ops.arange(7) == token[:, None])
        return ops.where(here, float("nan"), ops.arange(7.0)), token

    for token in (0, 1, 4, 6):  # 0 is padding, which no search chooses
        expected = "row 1 has them after 2 tokens"
        with pytest.raises(ValueError, match=expected):
            COMPILED[name](step, ops.convert_to_tensor([9, token]), 2, 5, end_id=9)
