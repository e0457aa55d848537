"""Which path `attend` takes, before a graph runs or in it, and what the layers of a graph share."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.blockwise import MASKS, B, D, H, S, T, V, assert_close, mask_of, problem
from tfattn import DotProductAttention, MaskedCrossentropy, TransformerDecoder, attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.paths import choice, dense, thresholds
from tfattn.core.paths.blockwise import attend as blockwise
from tfattn.core.paths.blockwise import block_scores, differentiation

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """The shared functions that a test makes; it begins with none."""
    functions, compiled = [], differentiation.compiled

    def noted(function):
        functions.append(compiled(function))
        return functions[-1]

    monkeypatch.setattr(differentiation, "_shared", {})
    monkeypatch.setattr(differentiation, "compiled", noted)
    return functions


def test_attend_chooses_its_path_by_size():
    def path(batch, heads, queries, keys, width=64, score=score_functions.scaled_dot_product):
        query, key = (
            keras.KerasTensor((batch, heads, queries, width)),
            keras.KerasTensor((batch, heads, keys, width)),
        )
        is_long = choice._is_long(query, key, score, thresholds.LEAST["cpu"])
        return "streamed" if is_long else "dense"

    assert path(1, 8, 4096, 4096) == "streamed"
    assert path(None, 8, 1024, 1024) == "streamed"
    assert path(0, 8, 4096, 4096) == "dense"
    assert path(32, 8, 128, 128) == "dense"
    assert path(1, 8, 1, 4096) == "dense"  # a step of decoding
    assert path(1, 8, 1, None) == "dense"  # which holds no choice in its graph
    assert path(2, 1, 1024, 1024, width=256) == "dense"
    assert path(2, 1, 1024, 1024, width=256, score=score_functions.additive) == "streamed"
    assert path(2, 1, 1024, 1024, width=4, score=score_functions.additive) == "dense"


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), None])
def test_a_graph_of_unknown_lengths_chooses_when_it_runs(batch):
    blocks = []

    def score(query, key):
        tf.py_function(
            lambda *sizes: blocks.append(tuple(map(int, sizes))),
            tf.unstack(tf.shape(query)[1:2]),
            [],
        )
        return score_functions.dot_product(query, key)

    def loss_and_gradients(path, *operands):
        with tf.GradientTape() as tape:
            tape.watch(operands)
            query, key, value = operands
            loss = tf.reduce_sum(
                attend(query, value, key, score, mask=masks.causal(), path=path) ** 2
            )
        return loss, tape.gradient(loss, operands)

    unknown = tf.TensorSpec((batch, None, 64))
    graph = tf.function(
        lambda *operands: loss_and_gradients(None, *operands), input_signature=[unknown] * 3
    )
    rng = np.random.default_rng(7)
    for length, longest in ((24, 24), (700, 512)):
        operands = [tf.constant(rng.normal(size=(1, length, 64)) / 4, tf.float32) for _ in range(3)]
        blocks.clear()
        here = graph(*operands)
        assert max(blocks)[0] <= longest
        assert length > longest or len(blocks) == 1  # streamed, the backward pass would ask again
        assert_close(tf.nest.flatten(here), tf.nest.flatten(loss_and_gradients("dense", *operands)))


CHOICES = {
    "causal": ("scaled dot", "causal", "none"),
    "additive": ("additive by head", "window", "none"),
    "kernel": ("gaussian", "padding", "none"),
    "bias": ("scaled dot", "none", "square"),
    "explicit": ("dot", "explicit by row", "by head and key"),
}


@pytest.mark.parametrize(
    "kind, jit",
    [
        ("causal", False),
        *(pytest.param(kind, True, marks=pytest.mark.slow) for kind in CHOICES),
    ],
    ids=lambda x: x if isinstance(x, str) else "xla" if x else "graph",
)
def test_both_sides_of_a_choice_equal_the_dense_path(kind, jit, monkeypatch):
    score, mask, bias = CHOICES[kind]
    function, arguments = problem(61, score, bias=bias)
    num_parameters = len(arguments) - 3 - (bias != "none")

    def loss_and_gradients(path, mask, *arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            query, key, value, *rest = arguments
            parameters, biases = rest[:num_parameters], rest[num_parameters:]
            bias = biases[0] if biases else None
            output = attend(query, value, key, function, parameters, mask, bias, path=path)
            loss = tf.reduce_sum(output**2)
        return [output, *tape.gradient(loss, arguments)]

    def chosen(mask, *arguments):
        return loss_and_gradients(None, mask if with_tensor else rule, *arguments)

    rule = mask_of(mask, 61)
    with_tensor = mask == "explicit by row"
    given = (
        np.random.default_rng(61).random((B, T, S)) < 0.5
        if with_tensor
        else np.zeros((1, 1, 1), bool)
    )
    unknown = [
        tf.TensorSpec(
            x.shape
            if 3 <= at < 3 + num_parameters
            else [None if n in (B, T, S) else n for n in x.shape]
        )
        for at, x in enumerate(arguments)
    ]
    if bias != "none":
        unknown[-1] = tf.TensorSpec([None] * len(arguments[-1].shape))
    wanted = loss_and_gradients("dense", given if with_tensor else rule, *arguments)
    signature = [tf.TensorSpec((None, None, None), bool), *unknown]
    for least, other in ((T, (dense, "attend")), (T + 1, (blockwise, "attend"))):
        with monkeypatch.context() as patch:
            patch.setattr(
                choice,
                "_is_long",
                lambda query, key, score, bounds, least=least: tf.shape(query)[2] >= least,
            )
            patch.setattr(*other, lambda query, *_, **__: 7.0 * query[..., :V])
            graph = tf.function(chosen, input_signature=signature, jit_compile=jit)
            assert_close(graph(given, *arguments), wanted)


@pytest.mark.slow
def test_a_model_of_unknown_lengths_trains_under_xla(monkeypatch):
    monkeypatch.setattr(choice, "_is_long", lambda query, *_: tf.shape(query)[1] > 6)
    rng = np.random.default_rng(67)
    batches = [(rng.integers(0, 9, (2, length)), rng.random((2, 1))) for length in (5, 12)]
    signature = (tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None, 1)))
    data = tf.data.Dataset.from_generator(lambda: batches, output_signature=signature)
    data = data.apply(tf.data.experimental.assert_cardinality(len(batches)))

    def trained(jit):
        keras.utils.set_random_seed(1)
        ids = keras.Input((None,), dtype="int32")
        x = keras.layers.Embedding(9, 4, mask_zero=True)(ids)
        x = DotProductAttention()(x, x, attention_mask=masks.causal())
        model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(x)))
        model.compile("sgd", "mse", jit_compile=jit)
        before = model.get_weights()
        model.fit(data, shuffle=False, verbose=0)
        assert all((x != y).any() for x, y in zip(before, model.get_weights(), strict=True))
        return model.get_weights()

    assert_close(trained(True), trained(False))


@pytest.mark.slow
def test_a_choice_can_be_differentiated_twice(monkeypatch, made):
    monkeypatch.setattr(choice, "_is_long", lambda query, *_: tf.shape(query)[1] > 8)
    function, arguments = problem(71, heads=(1, 1))
    arguments = [x[:, 0] for x in arguments]

    def penalty(path, *arguments):
        with tf.GradientTape() as outer:
            outer.watch(arguments)
            with tf.GradientTape() as inner:
                inner.watch(arguments)
                query, key, value = arguments
                mask = masks.padding(tf.fill(tf.shape(query)[:1], 5))
                loss = tf.reduce_sum(attend(query, value, key, function, mask=mask, path=path) ** 2)
            total = tf.add_n([tf.reduce_sum(g**2) for g in inner.gradient(loss, arguments)])
        return outer.gradient(total, arguments)

    unknown = [tf.TensorSpec((None, None, x.shape[-1])) for x in arguments]
    graph = tf.function(lambda *arguments: penalty(None, *arguments), input_signature=unknown)
    for operands in (arguments, [x[:, :7] for x in arguments]):  # streamed, and dense
        assert_close(graph(*operands), penalty("dense", *operands), 1e-3)
    # forward, backward, and the vjp of the latter, which each branch of each gradient calls
    assert [function.experimental_get_tracing_count() for function in made] == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("score", ["scaled dot", pytest.param("gaussian", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "least", [0, pytest.param(99, marks=pytest.mark.slow)], ids=["streamed", "dense"]
)
def test_a_choice_that_was_saved_has_its_gradient(score, least, monkeypatch, tmp_path):
    monkeypatch.setattr(choice, "_is_long", lambda query, *_: tf.shape(query)[2] >= least)
    function, arguments = problem(73, score)
    unknown = [tf.TensorSpec((None, H, None, x.shape[-1])) for x in arguments]

    def output(query, key, value, path=None):
        mask = masks.causal() & masks.padding(tf.fill(tf.shape(query)[:1], 5))
        return attend(query, value, key, function, mask=mask, path=path)

    saved = tf.Module()
    saved.output = tf.function(lambda *operands: output(*operands), input_signature=unknown)
    tf.saved_model.save(saved, tmp_path)
    loaded = tf.saved_model.load(tmp_path).output

    def gradients(function, **options):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            loss = tf.reduce_sum(function(*arguments, **options) ** 2)
        return tape.gradient(loss, arguments)

    assert_close(gradients(loaded), gradients(output, path="dense"))


def drawn(*lengths, seed=4):
    draw = np.random.default_rng(seed).normal
    return [tf.constant(draw(size=(B, H, n, D)), tf.float32) for n in lengths]


QUICK = ("none", "causal", "padding", "prefix | causal", "explicit by head")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in QUICK)) for kind in MASKS],
)
def test_calls_with_masks_of_one_kind_share_one_trace(kind, made):
    for seed in (3, 5):
        arguments, mask = drawn(T, S, S, seed=seed), mask_of(kind, seed)

        def loss_and_gradients(attention, arguments=arguments, **options):
            with tf.GradientTape() as tape:
                tape.watch(arguments)
                query, key, value = arguments
                loss = tf.reduce_sum(attention(query, value, key, **options) ** 2)
            return [loss, *tape.gradient(loss, arguments)]

        rule = None if mask is None else masks.every(mask)
        here = loss_and_gradients(
            blockwise.attend, score=score_functions.scaled_dot_product, mask=rule, shared=True
        )
        assert_close(here, loss_and_gradients(attend, mask=mask, path="dense"))
    assert [function.experimental_get_tracing_count() for function in made] == [
        1,
        1,
        0,
    ]  # twice differentiated, no one has


@pytest.mark.slow
def test_calls_with_masks_of_other_kinds_or_other_scores_share_nothing():
    x = tf.random.stateless_normal((1, 1, 6, 4), (1, 2))
    product = score_functions.dot_product
    rules = (None, masks.causal(), masks.window(2), masks.window(3), masks.padding([4]))
    for rule in rules:
        here = blockwise.attend(x, x, x, product, mask=rule, shared=True)
        assert_close([here], [attend(x, x, x, product, mask=rule, path="dense")])
    scaled = score_functions.scaled_dot_product
    assert_close([blockwise.attend(x, x, x, scaled, shared=True)], [attend(x, x, path="dense")])
    assert len(differentiation._shared) == len(rules) + 1


@pytest.mark.parametrize("kind", [pytest.param("causal", marks=pytest.mark.slow), "padding"])
def test_layers_of_one_kind_share_one_trace(kind, monkeypatch, made):
    monkeypatch.setattr(choice, "_is_long", lambda query, *_: tf.shape(query)[2] > 0)
    mask, operands = mask_of(kind, 3), drawn(T, S, S)

    def loss_and_gradients(path, *operands):
        with tf.GradientTape() as tape:
            tape.watch(operands)
            query, key, value = operands
            for _ in range(2):
                query = attend(query, value, key, mask=mask, path=path)
            loss = tf.reduce_sum(query**2)
        return tf.nest.flatten([loss, tape.gradient(loss, operands)])

    unknown = tf.TensorSpec((None, H, None, D))
    graph = tf.function(
        lambda *operands: loss_and_gradients(None, *operands), input_signature=[unknown] * 3
    )
    assert_close(graph(*operands), loss_and_gradients("dense", *operands))
    assert [function.experimental_get_tracing_count() for function in made] == [1, 1, 0]


@pytest.mark.slow
def test_a_process_keeps_few_shared_traces(monkeypatch):
    monkeypatch.setattr(choice, "_is_long", lambda query, *_: tf.shape(query)[2] > 0)
    monkeypatch.setattr(thresholds, "SHARED_CALLS", 2)
    for size in (2, 3, 4, 3):
        graph = tf.function(lambda x: attend(x, x, mask=masks.causal()))
        x = tf.random.stateless_normal((1, 6, size), (1, 2))
        specs = graph.get_concrete_function(tf.TensorSpec((1, None, size)))
        assert_close([specs(x)], [attend(x, x, mask=masks.causal(), path="dense")])
    assert len(differentiation._shared) == 2


def test_a_mask_of_ones_own_is_not_shared(monkeypatch, made):
    monkeypatch.setattr(choice, "_is_long", lambda query, *_: tf.shape(query)[2] > 0)

    class Even(masks.Mask):
        def on(self, grid):
            return grid.key_positions() % 2 == 0

    graph = tf.function(
        lambda x: attend(x, x, mask=Even()), input_signature=[tf.TensorSpec((1, None, 4))]
    )
    x = tf.random.stateless_normal((1, 6, 4), (1, 2))
    assert_close([graph(x)], [attend(x, x, mask=Even(), path="dense")])
    assert not differentiation._shared and not made


@pytest.mark.slow
def test_a_transformer_trains_with_the_causal_skip_without_being_told(monkeypatch):
    blocks, scores = [], block_scores.Product.scores

    def counted(self, tiling, query, *rest):
        tf.py_function(lambda: blocks.append(tiling), [], [])
        return scores(self, tiling, query, *rest)

    monkeypatch.setattr(block_scores.Product, "scores", counted)
    decoder = TransformerDecoder(11, num_layers=1, width=8, num_heads=8, hidden_dim=8)
    model = keras.Sequential(
        [keras.Input((None,), dtype="int32"), OverOnes(decoder), keras.layers.Dense(11)]
    )
    model.compile("sgd", MaskedCrossentropy(), jit_compile=False)
    ids = np.full((4, 1024), 3)
    model.fit(ids, ids, batch_size=4, verbose=0)
    # The square of the self-attention, and that of the attention over the memory, which has no
    # mask.
    causal, open_ = sorted(set(blocks), key=lambda tiling: -tiling.keys)
    assert blocks.count(open_) == open_.steps * open_.query_blocks * open_.key_blocks
    assert 0 < blocks.count(causal) < 0.8 * causal.steps * causal.query_blocks * causal.key_blocks


class OverOnes(keras.layers.Layer):
    """A decoder over a memory of ones, half as long as its target."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def call(self, ids):
        return self.decoder(ids, keras.ops.ones((4, 512, 8)))


def test_attend_refuses_a_path_that_it_cannot_take():
    x = np.ones((1, 2, 3), "float32")
    with pytest.raises(
        ValueError, match="`path` must be None, 'dense' or 'streamed'. Received: path='flash'"
    ):
        attend(x, x, path="flash")
    with pytest.raises(ValueError, match="`path` must be 'dense'"):
        attend(x, x, path="streamed", return_weights=True)
