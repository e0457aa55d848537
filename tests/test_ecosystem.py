"""Ten models as people write them: built, trained until the loss falls, saved, loaded in a new
process, equal.

All of them are read by one process, see `READ`.
"""

import keras
import numpy as np
import pytest

import tfattn
from tests.processes import printed
from tests.tensors import BACKEND, needs_xla

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

WORDS, CLASSES, STEPS = 23, 3, 17
DRAW = np.random.default_rng(11)
IDS = np.where(np.arange(13) < DRAW.integers(3, 14, (19, 1)), DRAW.integers(1, WORDS, (19, 13)), 0)
LABELS = IDS.max(1) % CLASSES
IMAGES = DRAW.normal(size=(17, 5, 7, 3)).astype("float32")
SERIES = DRAW.normal(size=(17, 11, 5)).astype("float32")


def compiled(model, loss="sparse_categorical_crossentropy", **options):
    if loss.startswith("sparse"):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, **options)
    return model


def classifier_over(x):
    return keras.layers.Dense(CLASSES, dtype="float32")(keras.layers.GlobalAveragePooling1D()(x))


def functional_classifier(**options):
    """Keras's text classification example, with padding that an Embedding masks."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(WORDS, 8, mask_zero=True)(ids)
    x = tfattn.TransformerEncoderBlock(num_heads=2, hidden_dim=16, dropout=0.1)(x)
    return compiled(keras.Model(ids, classifier_over(x)), **options), IDS, LABELS


def vision_transformer():
    """Patches of an image attend to each other, over both of their axes."""
    images = keras.Input((5, 7, 3))
    x = keras.layers.Conv2D(8, 1)(images)
    x = x + tfattn.MultiHeadAttention(2, 4, attention_axes=(1, 2))(x, x)
    model = keras.Model(images, classifier_over(keras.layers.Reshape((35, 8))(x)))
    return compiled(model), IMAGES, np.arange(len(IMAGES)) % CLASSES


def time_series():
    """A forecast: each step through `TimeDistributed`, then attention to what came before."""
    series = keras.Input((None, 5))
    x = keras.layers.TimeDistributed(keras.layers.Dense(8, activation="relu"))(series)
    x = tfattn.SinusoidalPositionalEncoding()(x)
    x = tfattn.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    x = keras.layers.TimeDistributed(tfattn.PositionwiseFeedForward(16))(x[:, :, None])[:, :, 0]
    model = keras.Model(series, keras.layers.TimeDistributed(keras.layers.Dense(5))(x))
    return compiled(model, "mse"), SERIES[:, :-1], SERIES[:, 1:]


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
    return compiled(Subclassed()), IDS, LABELS


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
    return compiled(model), IDS, LABELS


def nested():
    """A model within a model, called twice with one set of weights."""
    tokens = keras.Input((None, 8))
    inner = keras.Model(tokens, tfattn.TransformerEncoderBlock(2, 16)(tokens), name="inner")
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(WORDS, 8)(ids)
    return compiled(keras.Model(ids, classifier_over(inner(inner(x))))), IDS, LABELS


def mixed_precision():
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        return functional_classifier()
    finally:
        keras.mixed_precision.set_dtype_policy(before)


def cloned():
    model, x, y = functional_classifier()
    return compiled(keras.models.clone_model(model)), x, y


def xla():
    return functional_classifier(jit_compile=True)


MODELS = {
    function.__name__: function
    for function in (
        functional_classifier,
        vision_transformer,
        time_series,
        subclassed,
        sequential,
        nested,
        mixed_precision,
        cloned,
        xla,
    )
}

# Two replicas need two devices, which TensorFlow makes before it has started.
MIRRORED = """
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tests import test_ecosystem
keras.utils.set_random_seed(3)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
with strategy.scope():
    model, x, y = test_ecosystem.functional_classifier()
test_ecosystem.train_and_save(model, x[:16], y[:16], "mirrored", batch_size=16)
"""

# Reads every file of the folder that it runs in. A class of one's own is imported, as everywhere.
READ = """
import pathlib, keras, numpy as np
from tests import test_ecosystem
found = {}
for path in pathlib.Path().glob("*.keras"):
    with np.load(path.with_suffix(".npz")) as saved:
        model = keras.models.load_model(path)
        found[path.stem] = np.asarray(model(saved["x"]), "float32")
np.savez("found", **found)
"""


def train_and_save(model, x, y, name, folder=".", batch_size=None):
    """Writes down the model, what it says, and its losses."""
    history = model.fit(x, y, epochs=STEPS, batch_size=batch_size or len(x), verbose=0)
    model.save(f"{folder}/{name}.keras")
    output = np.asarray(model(x), "float32")
    np.savez(f"{folder}/{name}.npz", x=x, output=output, losses=history.history["loss"])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The folder of the files, and what each gives in a new process."""
    folder = tmp_path_factory.mktemp("ecosystem")
    for name, make in MODELS.items():
        if make is xla and BACKEND == "torch":
            continue
        keras.utils.set_random_seed(3)
        train_and_save(*make(), name, folder)
    if BACKEND == "tensorflow":
        printed("-c", MIRRORED, folder=folder)
    printed("-c", READ, folder=folder)
    with np.load(folder / "found.npz") as outputs:
        return folder, dict(outputs)


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=[needs_xla] * (make is xla)) for name, make in MODELS.items()),
        pytest.param("mirrored", marks=pytest.mark.tensorflow),
    ],
)
def test_a_model_learns_and_comes_back_equal(name, found):
    folder, outputs = found
    with np.load(folder / f"{name}.npz") as saved:
        assert saved["losses"][-1] < 0.9 * saved["losses"][0]
        assert np.isfinite(saved["output"]).all()
        np.testing.assert_array_equal(outputs[name], saved["output"])


def test_a_mask_that_an_embedding_makes_reaches_the_attention():
    model, x, _ = functional_classifier()
    longer = np.pad(x, ((0, 0), (0, 5)))
    np.testing.assert_allclose(model(longer), model(x), rtol=1e-5, atol=1e-5)
