"""Which path `attend` takes, before a graph runs or in it, and what the layers of a graph share."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.streaming import MASKS, B, D, H, S, T, assert_close
from tfattn import MaskedCrossentropy, TransformerDecoder, attend, masks
from tfattn.core import attend as engine
from tfattn.core import block_scores, streamed
from tfattn.core import scores as score_functions


def test_attend_chooses_its_path_by_size():
    def path(batch, heads, queries, keys, width=1):
        query, key = keras.KerasTensor((batch, heads, queries, 64)), keras.KerasTensor((batch, heads, keys, 64))
        return "streamed" if engine._long(query, key, width) else "dense"

    assert path(1, 8, 4096, 4096) == "streamed"
    assert path(None, 8, 1024, 1024) == "streamed"
    assert path(0, 8, 4096, 4096) == "dense"
    assert path(32, 8, 128, 128) == "dense"
    assert path(1, 8, 1, 4096) == "dense"  # a step of decoding
    assert path(1, 8, 1, None) == "dense"  # which holds no choice in its graph
    assert path(2, 1, 1024, 1024, width=256) == "streamed"


@pytest.mark.parametrize("batch", [1, None])
def test_a_graph_of_unknown_lengths_chooses_when_it_runs(batch):
    blocks = []

    def score(query, key):
        tf.py_function(lambda *sizes: blocks.append(tuple(map(int, sizes))), tf.unstack(tf.shape(query)[1:2]), [])
        return score_functions.dot_product(query, key)

    def loss_and_gradients(path, *operands):
        with tf.GradientTape() as tape:
            tape.watch(operands)
            query, key, value = operands
            loss = tf.reduce_sum(attend(query, value, key, score, mask=masks.causal(), path=path) ** 2)
        return loss, tape.gradient(loss, operands)

    unknown = tf.TensorSpec((batch, None, 64))
    graph = tf.function(lambda *operands: loss_and_gradients(None, *operands), input_signature=[unknown] * 3)
    rng = np.random.default_rng(7)
    for length, longest in ((24, 24), (700, 512)):
        operands = [tf.constant(rng.normal(size=(1, length, 64)) / 4, tf.float32) for _ in range(3)]
        blocks.clear()
        here = graph(*operands)
        assert max(blocks)[0] <= longest
        assert length > longest or len(blocks) == 1  # streamed, the backward pass would ask again
        assert_close(tf.nest.flatten(here), tf.nest.flatten(loss_and_gradients("dense", *operands)))


@pytest.mark.parametrize("kind", MASKS)
def test_layers_of_one_kind_share_one_trace(kind, monkeypatch):
    monkeypatch.setattr(engine, "_long", lambda query, key, width: tf.shape(query)[2] > 0)
    monkeypatch.setattr(streamed, "_shared", {})
    mask = MASKS[kind](np.random.default_rng(3))
    operands = [tf.constant(np.random.default_rng(4).normal(size=(B, H, n, D)), tf.float32) for n in (T, S, S)]

    def loss_and_gradients(path, *operands):
        with tf.GradientTape() as tape:
            tape.watch(operands)
            query, key, value = operands
            for _ in range(3):
                query = attend(query, value, key, mask=mask, path=path)
            loss = tf.reduce_sum(query**2)
        return tf.nest.flatten([loss, tape.gradient(loss, operands)])

    unknown = tf.TensorSpec((None, H, None, D))
    graph = tf.function(lambda *operands: loss_and_gradients(None, *operands), input_signature=[unknown] * 3)
    assert_close(graph(*operands), loss_and_gradients("dense", *operands))
    assert [function.experimental_get_tracing_count() for function in streamed._shared.values()] == [1]


def test_a_mask_of_ones_own_is_not_shared(monkeypatch):
    monkeypatch.setattr(engine, "_long", lambda query, key, width: tf.shape(query)[2] > 0)
    monkeypatch.setattr(streamed, "_shared", {})

    class Even(masks.Mask):
        def on(self, grid):
            return grid.key_positions() % 2 == 0

    graph = tf.function(lambda x: attend(x, x, mask=Even()), input_signature=[tf.TensorSpec((1, None, 4))])
    x = tf.random.stateless_normal((1, 6, 4), (1, 2))
    assert_close([graph(x)], [attend(x, x, mask=Even(), path="dense")])
    assert not streamed._shared


def test_a_transformer_trains_with_the_causal_skip_without_being_told(monkeypatch):
    blocks, scores = [], block_scores.Dot.scores

    def counted(self, square, query, *rest):
        tf.py_function(lambda: blocks.append(square), [], [])
        return scores(self, square, query, *rest)

    monkeypatch.setattr(block_scores.Dot, "scores", counted)
    decoder = TransformerDecoder(11, num_layers=1, width=8, num_heads=8, hidden_dim=8)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), OverOnes(decoder), keras.layers.Dense(11)])
    model.compile("sgd", MaskedCrossentropy(), jit_compile=False)
    ids = np.full((4, 1024), 3)
    model.fit(ids, ids, batch_size=4, verbose=0)
    # The square of the self-attention, and that of the attention over the memory, which has no mask.
    causal, open_ = sorted(set(blocks), key=lambda square: -square.keys)
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
    with pytest.raises(ValueError, match="`path` must be None, 'dense' or 'streamed'. Received: path='flash'"):
        attend(x, x, path="flash")
    with pytest.raises(ValueError, match="`path` must be 'dense'"):
        attend(x, x, path="streamed", return_weights=True)
