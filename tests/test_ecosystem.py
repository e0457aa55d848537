"""Models as people write them: built, trained until the loss falls, saved, loaded in a new process,
equal.

All of them are read by one process, see `READ`.
"""

import contextlib

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers import paths
from tests.helpers.processes import printed
from tests.helpers.tensors import BACKEND

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

WORDS, CLASSES, STEPS = 23, 3, 17
DRAW = np.random.default_rng(11)
IDS = np.where(np.arange(13) < DRAW.integers(3, 14, (17, 1)), DRAW.integers(1, WORDS, (17, 13)), 0)
LABELS = IDS.max(1) % CLASSES
IMAGES = DRAW.normal(size=(17, 5, 7, 3)).astype("float32")
SERIES = DRAW.normal(size=(17, 11, 5)).astype("float32")


def classes():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model, loss=None, **options):
    model.compile(keras.optimizers.Adam(0.02), loss or classes(), **options)
    return model


def classifier_over(x):
    return keras.layers.Dense(CLASSES, dtype="float32")(keras.layers.GlobalAveragePooling1D()(x))


def classifier(ids):
    """Keras's text classification example, with padding that an Embedding masks."""
    x = keras.layers.Embedding(WORDS, 8, mask_zero=True)(ids)
    return classifier_over(tfattn.TransformerEncoderBlock(2, 16, dropout=0.1)(x))


def vision_transformer(images):
    """Patches of an image attend to each other, over both of their axes."""
    x = keras.layers.Conv2D(8, 1)(images)
    x = x + tfattn.MultiHeadAttention(2, 4, attention_axes=(1, 2))(x, x)
    return classifier_over(keras.layers.Reshape((35, 8))(x))


def time_series(series):
    """A forecast: each step through `TimeDistributed`, then attention to what came before."""
    x = keras.layers.TimeDistributed(keras.layers.Dense(8, activation="relu"))(series)
    x = tfattn.SinusoidalPositionalEncoding()(x)
    x = tfattn.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    x = keras.layers.TimeDistributed(tfattn.PositionwiseFeedForward(16))(x[:, :, None])[:, :, 0]
    return keras.layers.TimeDistributed(keras.layers.Dense(5))(x)


def nested(ids):
    """A model within a model, called twice with one set of weights."""
    tokens = keras.Input((None, 8))
    inner = keras.Model(tokens, tfattn.TransformerEncoderBlock(2, 16)(tokens), name="inner")
    return classifier_over(inner(inner(keras.layers.Embedding(WORDS, 8)(ids))))


def functional():
    """Four models in one, each with a loss of its own."""
    ids = keras.Input((None,), dtype="int32")
    images, series = keras.Input((5, 7, 3)), keras.Input((None, 5))
    outputs = {
        "text": classifier(ids),
        "image": vision_transformer(images),
        "forecast": time_series(series),
        "nested": nested(ids),
    }
    losses = {"text": classes(), "image": classes(), "forecast": "mse", "nested": classes()}
    model = compiled(keras.Model([ids, images, series], outputs), losses)
    others = {"image": np.arange(17) % CLASSES, "forecast": SERIES[:, 1:]}
    return model, [IDS, IMAGES, SERIES[:, :-1]], {"text": LABELS, "nested": LABELS, **others}


@keras.saving.register_keras_serializable("ecosystem")
class Subclassed(keras.Model):
    """A model of its own class, whose call passes masks on by hand."""

    def __init__(self, width=8, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.embedding = keras.layers.Embedding(WORDS, width)
        self.attention = tfattn.AdditiveAttention(units=7)
        self.readout = keras.layers.Dense(CLASSES)

    def call(self, ids, training=None):
        x, mask = self.embedding(ids), keras.ops.not_equal(ids, 0)
        pooled, weights = self.attention(
            x, x, key_mask=mask, training=training, return_attention_scores=True
        )
        return self.readout(keras.ops.mean(pooled, axis=1) + keras.ops.mean(weights))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


def subclassed():
    return compiled(Subclassed()), [IDS], LABELS


def sequential():
    """A stack of layers that take one input each."""
    model = keras.Sequential(
        [
            keras.layers.Embedding(WORDS, 8, mask_zero=True),
            tfattn.LearnedPositionalEncoding(max_length=13),
            tfattn.TransformerEncoderBlock(num_heads=2, hidden_dim=16),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(CLASSES),
        ]
    )
    return compiled(model), [IDS], LABELS


def mixed_precision():
    """In bfloat16, compiled by XLA where there is one."""
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        ids = keras.Input((None,), dtype="int32")
        model = keras.Model(ids, classifier(ids))
        return compiled(model, jit_compile=BACKEND != "torch"), [IDS], LABELS
    finally:
        keras.mixed_precision.set_dtype_policy(before)


MODELS = (functional, subclassed, sequential, mixed_precision)

# Reads every file of the folder that it runs in. A class of one's own is imported, as everywhere.
READ = """
import pathlib, keras, numpy as np
from tests.test_ecosystem import said
for path in pathlib.Path().glob("*.keras"):
    with np.load(path.with_suffix(".npz")) as inputs:
        np.savez(f"{path.stem} found", **said(keras.models.load_model(path), [*inputs.values()]))
"""


def said(model, inputs):
    """The model's outputs by their names."""
    outputs = model(inputs[0] if len(inputs) == 1 else inputs)
    outputs = outputs if isinstance(outputs, dict) else {"output": outputs}
    return {name: np.asarray(output, "float32") for name, output in outputs.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By name, what each model says, its losses, and what its file says in a new process."""
    folder, here = tmp_path_factory.mktemp("ecosystem"), {}
    for make in MODELS:
        keras.utils.set_random_seed(3)
        model, inputs, labels = make()
        x = inputs[0] if len(inputs) == 1 else inputs
        # The largest graph need not hold both paths of the engine: the others do.
        with paths.dense() if make is functional else contextlib.nullcontext():
            history = model.fit(x, labels, epochs=STEPS, batch_size=17, verbose=0).history
        model.save(folder / f"{make.__name__}.keras")
        np.savez(folder / f"{make.__name__}.npz", *inputs)
        here[make] = said(model, inputs), history
    printed("-c", READ, folder=folder, warm=True)
    return {
        make: (*here[make], dict(np.load(folder / f"{make.__name__} found.npz"))) for make in here
    }


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS)
def test_keras_model_learns_and_comes_back_equal_from_its_file(make, trained):
    expected, history, found = trained[make]
    for losses in history.values():
        assert losses[-1] < 0.9 * losses[0]
    assert found.keys() == expected.keys()
    for name, output in expected.items():
        assert np.isfinite(output).all()
        np.testing.assert_array_equal(found[name], output)


@pytest.mark.slow
def test_embedding_mask_reaches_the_attention():
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, classifier(ids))
    longer = np.pad(IDS, ((0, 0), (0, 5)))
    np.testing.assert_allclose(model(longer), model(IDS), rtol=1e-5, atol=1e-5)
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(copy(IDS), model(IDS))
