"""What other people's code says on Keras 3: the pages "Coming from" quote it."""

import pathlib
import zipfile

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
PAGES = "".join(
    (DOCS / f"coming-from-{name}.md").read_text("utf-8")
    for name in ("hands-on-ml", "tensorflow-tutorials")
)
IDS = np.array([[3, 4, 0], [5, 0, 0]], "int32")


def embedding():
    return keras.layers.Embedding(11, 8, mask_zero=True)


def folder_beside_an_archive():
    with zipfile.ZipFile("spa.zip", "w") as file:
        file.writestr("spa-eng/spa.txt", "a\tb\n")
    origin = pathlib.Path("spa.zip").resolve().as_uri()
    path = keras.utils.get_file("spa-eng.zip", origin=origin, cache_dir=".", extract=True)
    return (pathlib.Path(path).with_name("spa-eng") / "spa.txt").read_text()


def function_of_tensorflow():
    import tensorflow as tf

    return tf.math.not_equal(keras.Input((None,), dtype="int32"), 0)


def strings_of_numpy():
    import tensorflow as tf

    words = keras.layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=3)
    text = keras.Input((), dtype=tf.string)
    return keras.Model(text, words(text)).predict(np.array(["a b"]), verbose=0)


def ragged_ids():
    import tensorflow as tf

    ids = tf.ragged.constant([[3, 4], [5]])
    return keras.layers.GRU(4)(keras.layers.Embedding(11, 8)(ids))


def subclass():
    class Model(keras.Model):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def call(self, x):
            return self.layer(x)

    model = Model(keras.layers.Dense(1))
    model(np.ones((1, 2)))
    return model


def scores_after_fit():
    class Layer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.attention = keras.layers.MultiHeadAttention(1, 4)

        def call(self, x):
            x, self.last = self.attention(x, x, return_attention_scores=True)
            return x

    layer, x = Layer(), np.ones((2, 3, 4), "float32")
    model = keras.Sequential([layer])
    model.compile("adam", "mse")
    model.fit(x, x, verbose=0)
    return layer.last.numpy()


def schedule():
    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

    return keras.optimizers.Adam(Schedule()).get_config()


def small():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def of_a_folder():
    pathlib.Path("folder").mkdir()
    return keras.models.load_model("folder")


SAID = {
    folder_beside_an_archive: "spa-eng/spa.txt",
    function_of_tensorflow: "A KerasTensor cannot be used as input to a TensorFlow function",
    strings_of_numpy: "Invalid dtype: str96",
    ragged_ids: "Cannot index into an inner ragged dimension",
    lambda: keras.layers.Embedding(
        11, 8, batch_input_shape=[1, None]
    ): "Unrecognized keyword arguments passed to Embedding",
    lambda: small().save(
        "folder", save_format="tf"
    ): "The `save_format` argument is deprecated in Keras 3",
    of_a_folder: "File format not supported",
    lambda: keras.layers.GRU(4).get_initial_state(
        embedding()(IDS)
    ): "Shapes of all inputs must match",
    scores_after_fit: "'SymbolicTensor' object has no attribute 'numpy'",
    lambda: subclass().save("model.keras"): "the object must override get_config()",
    schedule: "must override `get_config()`",
    lambda: keras.layers.experimental: "has no attribute 'experimental'",
}


@pytest.mark.parametrize("step", SAID, ids=SAID.values())
def test_a_step_of_other_pages_fails_as_our_page_says(step, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert SAID[step] in PAGES
    with pytest.raises(Exception) as error:  # noqa: PT011
        step()
    said = " ".join(str(error.value).replace("`", "").split())
    assert SAID[step].replace("`", "") in said


def test_keras_takes_the_mask_off_a_memory():
    memory, query = embedding()(IDS), np.ones((2, 1, 8), "float32")
    layer = keras.layers.MultiHeadAttention(1, 4)
    first, second = (
        np.asarray(layer(query, memory, return_attention_scores=True)[1])[1, 0, 0] for _ in range(2)
    )
    np.testing.assert_allclose(first, [1, 0, 0], atol=1e-6)
    assert second.min() > 0.1
