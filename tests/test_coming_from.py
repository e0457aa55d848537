"""What other people's code says on Keras 3: a page "Coming from" quotes it."""

import pathlib
import zipfile

import keras
import numpy as np
import pytest

from tests.helpers.tensors import tf

pytestmark = pytest.mark.tensorflow
DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "coming-from-keras-2-tutorials.md").read_text("utf-8")
IDS = np.array([[3, 4, 0], [5, 0, 0]], "int32")


def embedding(**options):
    return keras.layers.Embedding(11, 8, **options)


def folder_beside_an_archive():
    with zipfile.ZipFile("spa.zip", "w") as file:
        file.writestr("spa-eng/spa.txt", "a\tb\n")
    origin = pathlib.Path("spa.zip").resolve().as_uri()
    path = keras.utils.get_file("spa-eng.zip", origin=origin, cache_dir=".", extract=True)
    return (pathlib.Path(path).with_name("spa-eng") / "spa.txt").read_text()


def strings_of_numpy():
    words = keras.layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=3)
    text = keras.Input((), dtype=tf.string)
    return keras.Model(text, words(text)).predict(np.array(["a b"]), verbose=0)


class Model(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, x):
        x, self.last = self.layer(x, x, return_attention_scores=True)
        return x


def scores_after_fit():
    model, x = Model(keras.layers.MultiHeadAttention(1, 4)), np.ones((2, 3, 4), "float32")
    model.compile("adam", "mse")
    model.fit(x, x, verbose=0)
    return model.last.numpy()


def saved_subclass():
    model = Model(keras.layers.MultiHeadAttention(1, 4))
    model(np.ones((2, 3, 4)))
    model.save("model.keras")


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1


def of_a_folder():
    pathlib.Path("folder").mkdir()
    return keras.models.load_model("folder")


STEPS = {
    "spa-eng/spa.txt": folder_beside_an_archive,
    "A KerasTensor cannot be used as input to a TensorFlow function": lambda: tf.math.not_equal(
        keras.Input((None,), dtype="int32"), 0
    ),
    "Invalid dtype: str96": strings_of_numpy,
    "Cannot index into an inner ragged dimension": lambda: keras.layers.GRU(4)(
        embedding()(tf.ragged.constant([[3, 4], [5]]))
    ),
    "Unrecognized keyword arguments passed to Embedding": lambda: embedding(
        batch_input_shape=[1, None]
    ),
    "The `save_format` argument is deprecated in Keras 3": lambda: keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1)]
    ).save("folder", save_format="tf"),
    "File format not supported": of_a_folder,
    "Shapes of all inputs must match": lambda: keras.layers.GRU(4).get_initial_state(
        embedding(mask_zero=True)(IDS)
    ),
    "'SymbolicTensor' object has no attribute 'numpy'": scores_after_fit,
    "the object must override get_config()": saved_subclass,
    "must override `get_config()`": lambda: keras.optimizers.Adam(Schedule()).get_config(),
    "has no attribute 'experimental'": lambda: keras.layers.experimental,
}


@pytest.mark.slow
def test_step_of_other_pages_fails_as_our_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, step in STEPS.items():
        assert words in PAGE
        with pytest.raises(Exception) as error:  # noqa: PT011
            step()
        assert words.replace("`", "") in " ".join(str(error.value).replace("`", "").split())


@pytest.mark.slow
def test_keras_takes_the_mask_off_a_memory():
    memory, query = embedding(mask_zero=True)(IDS), np.ones((2, 1, 8), "float32")
    layer = keras.layers.MultiHeadAttention(1, 4)
    first, second = (
        np.asarray(layer(query, memory, return_attention_scores=True)[1])[1, 0, 0] for _ in range(2)
    )
    np.testing.assert_allclose(first, [1, 0, 0], atol=1e-6)
    assert second.min() > 0.1
