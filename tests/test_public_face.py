"""What users import: names, docstrings, registered names, and what an import brings along."""

import importlib.util
import inspect
import re

import keras
import pytest

import tfattn
from tests.processes import printed
from tests.tensors import BACKEND
from tfattn.layers.attention.base import AttentionLayer

# The design's table of public names, as far as this stage goes.
PUBLIC = {
    "engine": {"attend", "masked_softmax", "masks", "kernels", "path"},
    "biases, positions": {"biases", "scalings", "RotaryPositions", "RelativePositionBias"},
    "scores": {"DotProductScore", "AdditiveScore", "BilinearScore", "CosineScore", "KernelScore"},
    "layers": {
        "NadarayaWatson",
        "Attention",
        "DotProductAttention",
        "AdditiveAttention",
        "BilinearAttention",
        "MultiHeadAttention",
        "SinusoidalPositionalEncoding",
        "LearnedPositionalEncoding",
        "AddNorm",
        "PositionwiseFeedForward",
        "GatedFeedForward",
        "TransformerEncoderBlock",
        "TransformerDecoderBlock",
        "RecurrentEncoder",
        "RecurrentDecoder",
    },
    "models": {
        "NadarayaWatsonRegressor",
        "TransformerEncoder",
        "TransformerDecoder",
        "Transformer",
        "CausalLM",
        "BahdanauSeq2Seq",
    },
    "decoding": {
        "greedy_search",
        "beam_search",
        "sample",
        "translate",
        "translate_stream",
        "rules",
    },
    "training": {
        "MaskedCrossentropy",
        "MaskedAccuracy",
        "TransformerSchedule",
        "InverseSquareRootSchedule",
        "training",
    },
    "data": {"data"},
    "convert": {"convert"},
    "plot": {"plot"},
    "kernel regression": {"smoothing"},
    # Beyond the table: the base that a score of one's own is made from, field note 11, and step 15.
    "more": {"AlibiPositions", "HeadPositions", "Score", "attention_weights", "complexity"},
    # What the scores of later models have, and weights that are no softmax.
    "scores and weights": {
        "AttentionSinks",
        "NormalizedDotProductScore",
        "Normalizer",
        "SoftCapScore",
        "Sparsemax",
        "TopKSoftmax",
        "merge_attentions",
        "normalizers",
    },
}

BASES = {"HeadPositions", "Normalizer", "Score"}
CLASSES = sorted(name for name in tfattn.__all__ if inspect.isclass(getattr(tfattn, name)))
CALLABLES = sorted(name for name in tfattn.__all__ if callable(getattr(tfattn, name)))
LAYERS = [name for name in CLASSES if issubclass(getattr(tfattn, name), keras.layers.Layer)]

# Names every import that a module of tfattn asks for, with the module that asks.
WATCH = """
import builtins, sys
asked, askers = [], {}
real = builtins.__import__
def watching(name, globals=None, locals=None, fromlist=(), level=0):
    who = (globals or {}).get("__name__", "")
    if who.split(".")[0] == "tfattn":
        asked.append(name.split(".")[0])
        askers.setdefault(asked[-1], set()).add(who)
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = watching
for name in BLOCKED:
    sys.modules[name] = None
"""

# A multi-head attention in the backend's own tensors, against the formula in NumPy.
FORMULA = """
import numpy as np
import tfattn
rng = np.random.default_rng(0)
query = rng.normal(size=(2, 3, 5)).astype("float32")
value = rng.normal(size=(2, 7, 11)).astype("float32")
layer = tfattn.MultiHeadAttention(num_heads=2, key_dim=3)
output = np.asarray(layer(query, value, valid_lens=np.array([7, 4])))
q, k, v, o = (np.asarray(w, "float64") for w in layer.get_weights()[::2])
project = lambda x, w: np.einsum("btd,dhp->bhtp", x, w)
scores = np.einsum("bhtp,bhsp->bhts", project(query, q), project(value, k)) / np.sqrt(3)
scores[1, ..., 4:] = -np.inf
weights = np.exp(scores - scores.max(-1, keepdims=True))
weights /= weights.sum(-1, keepdims=True)
wanted = np.einsum("bhts,bhsp,hpe->bte", weights, project(value, v), o)
assert np.abs(output - wanted).max() < 1e-5, np.abs(output - wanted).max()
"""


def fresh(script, backend=BACKEND, blocked=()):
    """Runs a script in a process of its own and returns what it prints."""
    script = f"BLOCKED = {tuple(blocked)!r}\n{WATCH}\n{script}"
    return printed("-c", script, KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3")


def test_the_public_names_are_those_of_the_design():
    assert set(tfattn.__all__) == set().union(*PUBLIC.values())


def test_the_public_names_are_sorted_and_each_is_there():
    assert tfattn.__all__ == sorted(tfattn.__all__)
    assert all(getattr(tfattn, name) is not None for name in tfattn.__all__)


def test_a_name_that_is_not_there_raises_attribute_error():
    with pytest.raises(AttributeError, match="module 'tfattn' has no attribute 'Transfomer'"):
        _ = tfattn.Transfomer


def test_the_version_is_a_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", tfattn.__version__)


@pytest.mark.parametrize("name", CALLABLES)
def test_a_public_docstring_ends_its_first_line_and_has_an_example(name):
    text = inspect.getdoc(getattr(tfattn, name))
    assert getattr(tfattn, name).__doc__ is not None  # its own, not its base's
    assert text.splitlines()[0].endswith(".")
    assert "Example" in text and ">>>" in text


# the bases of scores and positions have no paper
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in BASES])
def test_a_layer_names_its_source(name):
    assert "\nSource: " in inspect.getdoc(getattr(tfattn, name))


ATTENDING = [name for name in LAYERS if issubclass(getattr(tfattn, name), AttentionLayer)]


@pytest.mark.parametrize("name", ATTENDING)
def test_an_attention_layer_tells_the_order_of_arguments_and_how_to_see_its_weights(name):
    text = " ".join(inspect.getdoc(getattr(tfattn, name)).split())
    arguments = list(inspect.signature(getattr(tfattn, name).call).parameters)[1:4]
    assert f"`({', '.join(arguments)})` in Keras's order" in text
    assert "`return_attention_scores=True`" in text
    assert "`tfattn.attention_weights`" in text
    assert "(query=" in text  # the example passes them by name


@pytest.mark.parametrize("name", CALLABLES)
def test_every_argument_is_in_the_docstring(name):
    public = getattr(tfattn, name)
    text = inspect.getdoc(public)
    arguments = inspect.signature(public).parameters
    shared = {"dtype", "name", "kwargs", "args"}
    inherited = (
        "those of `TransformerEncoderBlock`" in text or "those of `TransformerEncoder`" in text
    )
    missing = [a for a in arguments if a not in shared and not re.search(rf"\b{a}\b", text)]
    assert inherited or missing == []


@pytest.mark.parametrize("name", ["masks", "biases", "kernels", "scalings", "smoothing"])
def test_everything_in_a_public_module_has_a_docstring(name):
    module = getattr(tfattn, name)
    assert all(inspect.getdoc(getattr(module, inner)) for inner in module.__all__)


def test_every_registered_name_begins_with_the_package():
    registered = keras.saving.get_custom_objects()
    ours = [
        name for name, thing in registered.items() if thing.__module__.split(".")[0] == "tfattn"
    ]
    assert len(ours) > 20
    assert all(name.startswith("tfattn>") for name in ours)


# abstract: nobody saves one
@pytest.mark.parametrize("name", [name for name in CLASSES if name not in BASES])
def test_every_public_class_is_registered(name):
    assert keras.saving.get_registered_name(getattr(tfattn, name)) == f"tfattn>{name}"


@pytest.mark.slow
def test_an_import_asks_for_nothing_optional():
    # Keras itself looks for matplotlib: so not what is loaded counts, but what tfattn asks for, and
    # that it can do without.
    extras = ("matplotlib", "sentencepiece", "sacrebleu")
    asked = fresh("import tfattn; print(*sorted(set(asked)))", blocked=extras).split()
    # The last two come with tfattn, for kernel regression, and are asked for where it is used.
    assert not set(asked) & {*extras, "tensorflow", "scipy", "threadpoolctl"}
    assert "keras" in asked


@pytest.mark.tensorflow
@pytest.mark.slow
def test_layers_are_used_and_trained_without_asking_for_tensorflow():
    """But for what lets go of the gradients that TensorFlow's registry would keep for ever."""
    script = """
import keras, numpy as np
import tfattn
model = tfattn.Transformer(11, num_layers=1, width=8, num_heads=2, hidden_dim=16)
model.compile("sgd", tfattn.MaskedCrossentropy(), metrics=[tfattn.MaskedAccuracy()])
ids = np.array([[2, 3, 5, 0]])
model.fit((ids, ids), ids, verbose=0)
assert "keras" in asked
print("TensorFlow is asked for by", *sorted(askers["tensorflow"]))
"""
    askers = fresh(script).splitlines()[-1].split()[5:]
    assert askers == ["tfattn._gradients"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_multi_head_attention_gives_the_formulas_numbers_without_tensorflow(backend):
    # Keras's NumPy backend is itself made with SciPy and JAX.
    needed = {"numpy": ("scipy", "jax"), "jax": ("jax",)}[backend]
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {missing}")
    fresh(FORMULA, backend, blocked=("tensorflow",))
