"""Greedy search over toy steps, and what all searches share: one compiled loop, which may be part
of a function of the caller's.
"""

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
    compiled,
    needs_compiling,
    numpy,
    tf,
)
from tfattn import decoding, rules
from tfattn.decoding import compiling, translation

pytestmark = pytest.mark.usefixtures("dense_path")

V = 11


def counting(tokens, position, state):
    """The token after n is n + 1."""
    return ops.one_hot(ops.take(tokens, position, axis=1) + 1, V), state


def scripted(tokens, position, state):
    """Writes the rows of `state`, whatever came before."""
    return ops.one_hot(ops.take(state, position, axis=1), V), state


@pytest.mark.parametrize(
    "run", [lambda search: search(), lambda search: compiled(search)()], ids=["dropped", "all"]
)
def test_each_row_may_have_its_own_max_length(run):
    """With finished rows dropped, and with all kept."""
    script = [[4, 5, 3, 6, 7], [4, 4, 4, 4, 4], [4, 5, 6, 7, 8], [5, 5, 5, 5, 5], [3, 4, 5, 6, 7]]
    limits = [4, 2, 5, 1, 5]
    written = numpy(run(lambda: tfattn.GreedySearch()(scripted, as_tensor(script), 5, limits)))
    assert written.tolist() == [
        [4, 5, 3, 0, 0],
        [4, 4, 0, 0, 0],
        [4, 5, 6, 7, 8],
        [5, 0, 0, 0, 0],
        [3, 0, 0, 0, 0],
    ]
    assert written.dtype == "int32"


@pytest.mark.parametrize(
    "bad", [[1, 2, 3], [1, 2, 3, 0], [1.0, 2.0, 3.0, 4.0], [[1], [2, 3], 4, 5]], ids=str
)
def test_lengths_that_are_not_one_for_each_row_are_refused(bad):
    message = "one for each row, with `batch_size`=4. Received: max_length"
    with pytest.raises(ValueError, match=message):
        tfattn.GreedySearch()(scripted, np.ones((4, 5)), 4, max_length=bad)


@eagerly()
def test_begin_end_and_padding_may_be_other_ids():
    ids = {"begin_id": 5, "end_id": 8, "padding_id": 9}
    assert numpy(tfattn.GreedySearch()(counting, (), 1, 5, **ids)).tolist() == [[6, 7, 8, 9, 9]]


@pytest.mark.tensorflow
@eagerly()
def test_a_step_sees_what_is_written_and_padding_after_it():
    def step(tokens, position, state):
        seen.append((numpy(tokens).tolist(), int(position)))
        return counting(tokens, position, state)

    seen = []
    tfattn.GreedySearch()(step, (), batch_size=1, max_length=3, end_id=5)
    assert seen == [([[2, 0, 0]], 0), ([[2, 3, 0]], 1), ([[2, 3, 4]], 2)]


PLAIN = {
    "greedy": tfattn.GreedySearch(),
    "beams": lambda *of, **ids: tfattn.BeamSearch(num_beams=2)(*of, **ids).tokens[:, 0],
    "diverse": lambda *of, **ids: tfattn.BeamSearch(
        num_beams=2, diverse=decoding.DiverseBeams(2, 0.1)
    )(*of, **ids).tokens[:, 0],
    "sample": tfattn.Sampling(temperature=0.01, seed=0),
    "stream": lambda step, state, _, length, **ids: np.pad(
        tokens := [*tfattn.GreedySearch().stream(step, state, length, **ids)],
        (0, length - len(tokens)),
    )[None],
}


@pytest.mark.parametrize("search", PLAIN)
def test_padding_is_never_a_choice(search):
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


@pytest.mark.parametrize("search", PLAIN)
def test_scores_of_nan_are_refused_by_row_and_place(search):
    def step(tokens, position, bad):
        here = ops.logical_and(bad, position == 2)
        return ops.where(here[:, None], float("nan"), counting(tokens, position, None)[0]), bad

    bad = [True] if search == "stream" else [False, True, False]
    expected = rf"`step` must .*; row {bad.index(True)} has NaN after 2 tokens. Received: step="
    with eagerly(), pytest.raises(ValueError, match=expected):
        PLAIN[search](step, ops.convert_to_tensor(bad), len(bad), 5, end_id=9)


@eagerly()
def test_the_state_is_returned_as_it_was_when_each_row_ended():
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
def test_a_state_without_tensors_is_fine():
    for state in ((), {}, None, {"cache": None}):
        assert numpy(tfattn.GreedySearch()(counting, state, 1, 3, end_id=5)).tolist() == [[3, 4, 5]]


@eagerly()
def test_the_batch_size_may_be_a_tensor():
    written = tfattn.GreedySearch()(counting, (), as_tensor(3), 2, end_id=9)
    assert numpy(written).tolist() == [[3, 4]] * 3


# One compiled loop.


@needs_compiling
@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        lambda number, *inputs: decoding.Sampling(
            temperature=0.5 + number,
            top_p=0.5 + 0.2 * number,
            top_k=4,
            seed=[None, 2, keras.random.SeedGenerator(3)][number],
        )(*inputs, **IDS),
        lambda number, *inputs: decoding.BeamSearch(
            length_penalty=0.6 * number, diverse=decoding.DiverseBeams(2, 0.5 * number)
        )(*inputs, **IDS),
        lambda number, *inputs: decoding.GreedySearch(
            rules=[
                rules.TargetPrefix([number + 3, 3]),
                rules.MinP(0.1 + 0.2 * number),
                rules.TypicalP(1.0 - 0.2 * number),
            ]
        )(*inputs, **IDS),
        lambda number, *inputs: decoding.GreedySearch(
            rules=[
                rules.RepetitionPenalty(1.0 + number),
                rules.ForbiddenTokens([[3, number + 4], 3]),
                rules.RequiredTokens([number + 4, [6, number + 4]]),
                rules.MinLength(number),
            ]
        )(*inputs, **IDS),
    ],
    ids=["sample", "groups", "prefix", "required"],
)
def test_another_state_or_number_is_no_new_trace(run):
    calls = []
    step = noting(trigram, calls)
    for number in range(3):
        run(number, step, tables(number, 2, 7), 2, 7)
    assert len(calls) == CALLS_A_TRACE


@needs_compiling
@pytest.mark.slow
def test_another_kind_of_rule_or_another_order_is_another_trace():
    calls, table = [], tables(0, 3, 7)
    step, first, second = noting(trigram, calls), rules.MinLength(2), rules.MinP(0.1)
    sizes = [[rules.NoRepeatNgrams(n)] for n in (2, 3)]  # each compares n positions
    different = ([first, second], [second, first], *sizes)
    for some in (*different, *different):
        decoding.GreedySearch(rules=some)(step, table, 3, 7, **IDS)
    assert len(calls) == 4 * CALLS_A_TRACE


@needs_compiling
@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("kind", [decoding.GreedySearch, decoding.BeamSearch])
def test_a_few_traces_serve_prompts_of_every_shape(kind, jit_compile):
    search, calls = kind(jit_compile=jit_compile), []
    step = noting(counting, calls)
    # On JAX each shape has its own trace.
    shapes = [(2, 3, 7), (3, 5, 3), (5, 7, 11), (7, 2, 1), (2, 3, 7), (3, 5, 3)]
    for batch, prompt, length in shapes:
        found = search(step, ops.ones((batch, prompt)), batch, length, end_id=10)
        tokens = numpy(found.tokens[:, 0] if hasattr(found, "tokens") else found)
        assert tokens.tolist() == [([*range(3, 11)] + [0] * 3)[:length]] * batch
    assert len(calls) <= (4 if BACKEND == "jax" else 2) * CALLS_A_TRACE


@pytest.mark.tensorflow
def test_xla_compiles_the_loop_on_request_alone():
    def step(tokens, position, state):
        rows = tf.numpy_function(len, [tokens], tf.int64)  # which XLA cannot compile
        return ops.one_hot(ops.full((tf.cast(rows, "int32"),), 4), 8), state

    assert numpy(tfattn.GreedySearch()(step, (), 1, 2)).tolist() == [[4, 4]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="XLA"):
        tfattn.GreedySearch(jit_compile=True)(step, (), 1, 2)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_searches_of_many_models_warn_of_no_retracing():
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
def test_a_compiled_search_reads_variables_as_they_are_now():
    best, layer = Best(), BestLayer()
    for step in (best.step, lambda *arguments: best.step(*arguments), layer.step):
        for token in (4, 6):
            (layer if step == layer.step else best).token.assign(token)
            assert numpy(tfattn.GreedySearch()(step, (), 2, 2)).tolist() == [[token] * 2] * 2


@eagerly()
def test_two_owners_of_one_method_do_not_share_a_search():
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


def test_a_search_does_not_keep_its_steps_owner_alive():
    alive = decode_and_forget()
    gc.collect()
    assert alive() is None


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_search_of_unknown_shapes_works_in_a_function_and_in_its_export(tmp_path):
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


RULES = [
    rules.RepetitionPenalty(1.5),
    rules.NoRepeatNgrams(2),
    rules.TargetPrefix([[5], [], [3, 4]]),
    rules.RequiredTokens([4]),
    rules.MinLength(2),
]
SEARCHES = {
    "greedy": decoding.GreedySearch(rules=RULES),
    "sample": decoding.Sampling(top_p=0.9, temperature=2.0, rules=RULES),
    "beams": decoding.BeamSearch(num_beams=3, num_results=2, return_trace=True, rules=RULES),
    "groups": decoding.BeamSearch(num_beams=4, diverse=decoding.DiverseBeams(2, 1.0)),
}


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_is_the_same_step_by_step_compiled_and_under_xla(name, monkeypatch):
    """TensorFlow drops rows in the first two, and keeps all in the third."""
    draws = as_tensor(np.random.default_rng(0).uniform(size=(3, 6)).astype("float32"))
    monkeypatch.setattr(keras.random, "uniform", lambda *_, **__: draws)  # XLA has its own numbers

    def search(table):
        found = SEARCHES[name](trigram, table, 3, [6, 4, 5], **IDS)
        return found[:2] if isinstance(found, tuple) else (found,)

    table = as_tensor(tables(37, 3, 7, scale=3.0))
    with eagerly():
        wanted = search(table)
    for run in (search, tf.function(search, jit_compile=True)):
        for mine, theirs in zip(run(table), wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.skipif(BACKEND != "torch", reason="about what PyTorch keeps for gradients")
def test_a_search_keeps_nothing_for_gradients():
    ids, model = np.array([[2, 4, 5, 0]]), transformer()
    state = translation.encoded(model, ids, 5)
    _, after = tfattn.GreedySearch()(model.step, state, 1, 5, return_state=True)
    leaves = [x for x in keras.tree.flatten((state, after)) if ops.is_tensor(x)]
    assert len(leaves) > 4 and not any(x.requires_grad for x in leaves)


@pytest.mark.skipif(BACKEND != "jax", reason="about weights made while JAX traces")
def test_the_step_of_a_model_that_is_not_built_is_refused():
    class Unbuilt(keras.Model):
        def step(self, tokens, position, state):
            pass

    expected = "decoding: `step` must belong to a model that is built"
    with pytest.raises(ValueError, match=expected):
        tfattn.GreedySearch()(Unbuilt().step, (), 1, 3)


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
