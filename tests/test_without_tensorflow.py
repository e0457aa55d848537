"""From the import to the file, where TensorFlow is not installed."""

import pytest

from tests.helpers.processes import printed
from tests.helpers.tensors import BACKEND

STORY = """
import functools, sys

sys.modules["tensorflow"] = None  # whoever imports it finds that it is not there

import keras
import numpy as np
import tfattn
from tfattn import data, plot, training

folder = sys.argv[1]
keras.utils.set_random_seed(0)
pairs = data.toy_translation(40, seed=0)
words = [data.Vocabulary.from_sentences(side) for side in zip(*pairs)]
batches = data.token_batches(pairs, *words, 512, shuffle_seed=0, length_multiple=16)
sizes = {"num_layers": 1, "width": 16, "num_heads": 2, "hidden_dim": 32, "dropout": 0.1}
model = tfattn.Transformer(*map(len, words), **sizes)
model.build(((None, None), (None, None)))
model.compile(
    keras.optimizers.Adam(0.01, use_ema=True),
    tfattn.MaskedCrossentropy(0.1),
    metrics=[tfattn.MaskedAccuracy()],
)
sources, references = zip(*pairs[:3])
translate = functools.partial(tfattn.translate, source_vocabulary=words[0])
translate = functools.partial(translate, target_vocabulary=words[1])
bleu = training.ValidationBleu(translate, sources, references)
backup = training.Backup(folder + "/run.backup")
history = model.fit(
    batches,
    validation_data=batches,
    epochs=3,
    shuffle=False,
    verbose=0,
    callbacks=[training.AveragedWeights([bleu]), backup],
).history
assert history["loss"][-1] < history["loss"][0] and "val_bleu" in history

found = translate(model, sources)
for search in (tfattn.BeamSearch(num_beams=2), tfattn.Sampling(seed=0)):
    assert len(translate(model, sources, search=search)) == 3

ids = np.array([words[0].encode(sources[0])])
weights = tfattn.attention_weights(model, (ids, ids))
path, array = next(iter(weights.items()))
plot.heatmaps(np.asarray(array)[0]).savefig(folder + "/weights.png")
plot.head_grid({path: array[0] for path, array in weights.items()}).savefig(folder + "/grid.svg")

model.save(folder + "/model.keras")
model.save_weights(folder + "/model.weights.h5")
again = keras.saving.load_model(folder + "/model.keras")
assert translate(again, sources) == found
assert training.Backup(folder + "/run.backup").epoch == 3
print("done", keras.backend.backend())
"""


@pytest.mark.skipif(BACKEND == "tensorflow", reason="about a package that has no TensorFlow")
def test_model_without_tensorflow_is_trained_searched_drawn_and_saved(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sacrebleu")
    said = printed("-c", STORY, tmp_path, MPLBACKEND="Agg")
    assert said.splitlines()[-1] == f"done {BACKEND}"
    written = {path.name for path in tmp_path.iterdir()}
    assert {"weights.png", "grid.svg", "model.keras", "model.weights.h5", "run.backup"} <= written
