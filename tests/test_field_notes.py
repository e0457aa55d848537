"""What users of attention layers run into: `field_notes.txt` has the tests of each row of the page.

`pytest --full -k field_note_05` runs those of row 5. Most stand where their subject does; here are
those of rows that are about more than one part.
"""

import ast
import functools
import types

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.field_notes import TESTS, keyword, names_of_tests, notes
from tests.helpers.paths import PATHS, blocks_of
from tests.helpers.tensors import both_ways, tf
from tests.layers.test_multi_head import draw
from tfattn import attend, biases, masks
from tfattn.core.engine import dispatch
from tfattn.data import Characters, SubwordVocabulary, Vocabulary


@functools.cache
def functions_of(file):
    path = TESTS / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_field_notes_page_has_every_note_and_its_tests_exist():
    assert [note.number for note in notes()] == list(range(1, 51)) == [*names_of_tests()]
    for note in notes():
        assert note.elsewhere.strip() and note.here.strip() and note.tests, keyword(note.number)
        for test in note.tests:
            file, _, function = test.partition("::")
            assert function.startswith("test_") and function in functions_of(file), test


def test_field_notes_keywords_find_the_tests_of_a_note(request):
    def keywords_of(file, name):
        node = f"tests/{file}::{name}"
        item = types.SimpleNamespace(path=TESTS / file, nodeid=node, extra_keyword_matches=set())
        request.config.hook.pytest_itemcollected(item=item)
        return item.extra_keyword_matches

    numbers = {}
    for note in notes():
        for test in note.tests:
            numbers.setdefault(test, set()).add(f"field_note_{note.number:02}")
    assert max(map(len, numbers.values())) > 1
    for test, keywords in numbers.items():
        file, _, name = test.partition("::")
        assert keywords_of(file, name) == keywords_of(file, f"{name}[Attention]") == keywords
        assert keywords_of(f"other/{file}", name) == set()


# Note 3.


def padded_model():
    """A classifier that hides its padding by nothing but the mask of its embedding."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, 6, mask_zero=True)(ids)
    x = tfattn.MultiHeadAttention(2, 3)(query=x, value=x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, keras.layers.Dense(1)(x))


@pytest.mark.tensorflow
@pytest.mark.slow
def test_padded_batch_is_the_same_eagerly_in_graphs_and_in_fit(dense_path):
    ids = np.random.default_rng(3).integers(1, 11, (5, 7)).astype("int32")
    ids[::2, 4:] = 0
    longer, labels = np.pad(ids, ((0, 0), (0, 2))), np.arange(5.0)[:, None]
    model, losses = padded_model(), []
    wanted = model(ids)
    for run in (model, tf.function(model)):
        for batch in (ids, longer):
            np.testing.assert_allclose(run(tf.constant(batch)), wanted, rtol=1e-5, atol=1e-6)
    for batch, options in (
        (ids, {"run_eagerly": True}),
        (longer, {"jit_compile": False}),
        (longer, {"jit_compile": True}),
    ):
        model = padded_model()
        model.compile(keras.optimizers.SGD(0.1), "mse", **options)
        losses.append(model.fit(batch, labels, epochs=3, verbose=0).history["loss"])
    assert losses[0][-1] < losses[0][0]
    for others in losses[1:]:
        np.testing.assert_allclose(others, losses[0], rtol=1e-4)


# Note 4.


# What is asked for beside the causal mask: policy, masks, dropout rate, training, weights.
BESIDE = {
    "none": ("mixed_float16", {}, 0.5, True, False),
    "lengths": ("float32", {"valid_lens": np.array([7, 6])}, 0.5, False, True),
    "array": ("mixed_bfloat16", {"attention_mask": ~np.eye(7, k=-1, dtype=bool)}, 0.0, False, True),
    "object": ("mixed_float16", {"attention_mask": masks.window(3)}, 0.5, True, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("path", PATHS)
def test_causal_attention_later_token_changes_no_bit_before_it(path, beside):
    policy, options, rate, training, scores = BESIDE[beside]
    tokens = draw(2, 7, 11)
    changed = tokens.copy()
    changed[:, 4] += 1
    scores = scores and path == "dense"
    results = []
    for x in (tokens, changed):
        layer = tfattn.MultiHeadAttention(
            3, 5, dropout=rate, seed=2, dtype=policy, flash_attention=path == "streamed"
        )
        layer.build(x.shape, x.shape)
        layer.set_weights(
            [w if w.dtype == "uint32" else draw(*w.shape) for w in layer.get_weights()]
        )
        result = layer(
            query=x,
            value=x,
            use_causal_mask=True,
            return_attention_scores=scores,
            training=training,
            **options,
        )
        output = result[0] if scores else result
        results.append(np.asarray(keras.ops.cast(output, "float32")))
    before, after = results
    np.testing.assert_array_equal(after[:, :4], before[:, :4])
    assert (after[:, 4] != before[:, 4]).any()


# Note 12.


@pytest.mark.slow
def test_attention_dropout_rate_keeps_the_streamed_path(monkeypatch):
    taken, ask = [], dispatch.streams

    def noted(*args):
        taken.append(ask(*args))
        return taken[-1]

    monkeypatch.setattr(dispatch, "streams", noted)
    long, outputs = draw(1, 2048, 8), []
    for rate in (0.0, 0.5):
        layer = tfattn.MultiHeadAttention(2, 4, dropout=rate)
        layer.build(long.shape, long.shape)
        layer.set_weights(
            [w if w.dtype == "uint32" else draw(*w.shape) for w in layer.get_weights()]
        )
        outputs.append(layer(query=long, value=long, use_causal_mask=True))
    assert taken == [True, True]
    assert [output.shape for output in outputs] == [(1, 2048, 8)] * 2
    np.testing.assert_array_equal(*outputs)


# Note 31.


@pytest.mark.slow
@pytest.mark.tensorflow
def test_streamed_attention_asks_a_bias_for_no_more_than_a_block():
    inner, asked = biases.alibi(3), []

    class Noted(biases.Bias):
        def on(self, grid):
            asked.append((grid.queries, grid.keys))
            return inner.on(grid)

    query, value = draw(2, 3, 13, 5), draw(2, 3, 17, 5)
    results = []
    for bias in (Noted(), inner.dense(13, 17)):

        def run(query, bias=bias):
            return attend(query=query, value=value, bias=bias, path="streamed")

        with blocks_of((4, 6)):
            output, (gradient,) = both_ways(run, [query])
        results.append((output, gradient))
    assert (4, 6) in asked and max(queries * keys for queries, keys in asked) == 4 * 6
    for here, there in zip(*results, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-5)


# Note 32.


def test_vocabulary_new_chinese_sentence_is_known():
    sentences, new = ["我喜欢猫", "猫喜欢鱼", "我有鱼"], "我喜欢鱼"
    with pytest.raises(ValueError, match=r"from_sentences: `sentences` must have spaces between"):
        Vocabulary.from_sentences(sentences)
    spaced = Vocabulary.from_sentences(["我 喜欢 猫", "猫 喜欢 鱼", "我 有 鱼"])
    assert spaced.unknown_id not in spaced.encode("我 喜欢 鱼")
    assert spaced.encode(new) == [spaced.unknown_id]  # one word, and a new one
    characters = Vocabulary.from_sentences(sentences, tokenizer=Characters())
    assert characters.unknown_id not in characters.encode(new)
    assert characters.decode(characters.encode(new)) == new
    subwords = SubwordVocabulary.from_sentences(sentences, size=30)
    assert subwords.unknown_id not in subwords.encode(new)
    assert subwords.decode(subwords.encode(new)) == new


# Note 35.


@pytest.mark.tensorflow  # where a gather's gradient comes as pairs of rows and places
def test_keras_adam_still_squares_the_gradient_of_each_word_by_itself():
    embedding = keras.layers.Embedding(3, 2)
    embedding.build((None,))
    embedding.set_weights([np.ones((3, 2), "float32")])
    model = keras.Sequential([keras.Input((4,), dtype="int32"), embedding])
    model.compile(keras.optimizers.Adam(0.1), loss=lambda _, output: keras.ops.sum(output))
    model.train_on_batch(np.array([[0, 0, 0, 1]]), np.zeros((1, 4, 2)))
    (velocity,) = [v for v in model.optimizer.variables if v.path.endswith("embeddings_velocity")]
    of_sum = 0.001 * np.square([[3.0, 3.0], [1.0, 1.0], [0.0, 0.0]])  # (1 − β₂) g²
    found = keras.ops.convert_to_numpy(velocity)
    np.testing.assert_allclose(found[1:], of_sum[1:], rtol=1e-5)
    np.testing.assert_allclose(found[0], of_sum[0] / 3, rtol=1e-5)
