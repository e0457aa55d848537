"""What models compute on a backend, from the same weights and batches.

`python -m tests.helpers.backend_numbers` records the numbers of this backend as those that all are
compared with. A change that is to give the same numbers does not record them anew.
"""

import json
from pathlib import Path

import keras
import numpy as np

import tfattn
from tfattn import data

RECORD = Path(__file__).with_suffix(".json")
PAIRS = data.toy_translation(60, seed=1)
ROWS, LENGTH = 16, 16
WORDS = data.Vocabulary.from_sentences([sentence for pair in PAIRS for sentence in pair])
SIZES = {"width": 8, "dropout": 0.0, "seed": 0}


def transformer():
    return tfattn.Transformer(len(WORDS), num_layers=1, num_heads=2, hidden_dim=11, **SIZES)


def recurrent():
    return tfattn.BahdanauSeq2Seq(len(WORDS), units=7, **SIZES)


MODELS = {"transformer": transformer, "recurrent": recurrent}


def with_weights(model):
    """The model with weights that depend on their places alone."""
    model.build(((None, None), (None, None)))
    rng = np.random.default_rng(3)
    model.set_weights([0.3 * rng.normal(size=weight.shape) for weight in model.get_weights()])
    return model


def numbers_of(name):
    """By the name of what gave them."""
    # Batches of two sizes and with padding, whose means and sums differ. All sentences are as long
    # as the longest and all batches for training of one size, for JAX compiles each shape.
    options = {"shuffle_seed": 5, "length_multiple": LENGTH}
    batches = data.token_batches(PAIRS[: 3 * ROWS], WORDS, WORDS, ROWS * LENGTH, **options)
    judged = data.translation_batches(PAIRS, WORDS, WORDS, ROWS)
    (inputs, targets) = next(iter(judged.as_numpy_iterator()))
    assert inputs[0].shape == (ROWS, LENGTH) and len(PAIRS) % ROWS
    model = with_weights(MODELS[name]())
    model.compile(
        # Adam of Keras is another one on TensorFlow: field note 35.
        keras.optimizers.SGD(0.1, momentum=0.9),
        tfattn.MaskedCrossentropy(0.1),
        metrics=[tfattn.MaskedAccuracy()],
        # The compilers of TensorFlow and PyTorch take a minute.
        jit_compile=keras.backend.backend() == "jax",
    )
    found = {"predict": model.predict(inputs, verbose=0)}
    found["predict_on_batch"] = model.predict_on_batch(inputs)
    for step in range(3):
        logs = model.train_on_batch(inputs, targets, return_dict=True)
        found |= {f"train_on_batch {step}, {key}": value for key, value in logs.items()}
    weights = np.linspace(0.5, 1.5, len(targets))
    logs = model.test_on_batch(inputs, targets, sample_weight=weights, return_dict=True)
    found |= {f"test_on_batch, {key}": value for key, value in logs.items()}
    history = model.fit(batches, validation_data=judged, epochs=2, shuffle=False, verbose=0).history
    found |= {f"fit, {key}": values for key, values in history.items()}
    logs = model.evaluate(judged, return_dict=True, verbose=0)
    found |= {f"evaluate, {key}": value for key, value in logs.items()}
    for weight in model.trainable_weights:
        found[f"weights, {weight.path.partition('/')[2]}"] = keras.ops.convert_to_numpy(weight)
    state = model.encode(inputs[0], max_length=9)
    tokens = tfattn.BeamSearch(num_beams=3)(model.step, state, len(targets), 9).tokens
    found["beam_search"] = keras.ops.convert_to_numpy(tokens)
    return {key: _few(np.asarray(value, "float64")) for key, value in found.items()}


def _few(array, most=12):
    """An array's numbers; of a large one its products with three random vectors, which one wrong
    number changes as much as itself.
    """
    if array.size > most:
        array = np.random.default_rng(7).normal(size=(3, array.size)) @ array.ravel()
    return [float(f"{number:.6g}") for number in array.ravel()]


def recorded():
    """The numbers of each model by its name, as they were recorded."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


if __name__ == "__main__":
    numbers = {name: numbers_of(name) for name in MODELS}
    RECORD.write_text(json.dumps(numbers, indent=0) + "\n", encoding="utf-8")
