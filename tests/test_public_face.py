"""What users import: names, signatures, docstrings, registered names, and what an import loads."""

import builtins
import inspect
import re
import sys

import keras
import numpy as np
import pytest

import tfattn
from tests import public_signatures
from tests.helpers.processes import printed
from tfattn.layers.attention.base import AttentionLayer

BASES = {"HeadPositions", "Normalizer", "Score"}  # abstract, and of no paper
PUBLIC = {name: getattr(tfattn, name) for name in tfattn.__all__}
CALLABLES = {name: public for name, public in PUBLIC.items() if callable(public)}
CLASSES = {name: public for name, public in PUBLIC.items() if inspect.isclass(public)}

OF_TENSORFLOW = r"(tensorflow|tfattn\.core\.engine\.tensorflow|tfattn\.training\.streamed\w*)\b"

# Names every package that a module of tfattn asks for.
WATCH = """
import builtins, sys
asked = []
real = builtins.__import__
def watching(name, globals=None, locals=None, fromlist=(), level=0):
    if (globals or {}).get("__name__", "").split(".")[0] == "tfattn":
        asked.append(name.split(".")[0])
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


def test_public_names_are_sorted_and_others_raise_attribute_error():
    assert tfattn.__all__ == sorted(tfattn.__all__)
    with pytest.raises(AttributeError, match="module 'tfattn' has no attribute 'Transfomer'"):
        _ = tfattn.Transfomer


def test_signature_that_changed_has_its_line_in_the_changelog():
    before, now = public_signatures.released(), public_signatures.current()
    assert len(now) > 300
    changed = {name for name in before | now if before.get(name) != now.get(name)}
    lacking = "\n".join(
        f"- `tfattn.{name}`: {before.get(name, 'new')} -> {now.get(name, 'gone')}"
        for name in sorted(changed - public_signatures.unreleased_lines())
    )
    assert not lacking, f"CHANGELOG.md, Unreleased, Signatures lacks:\n{lacking}"


def test_signature_has_names_and_defaults_and_no_annotations():
    class Pooling:
        def __init__(self, width: int, *, cell: type = dict, **kwargs: float) -> None: ...

    assert public_signatures.signature(Pooling) == "(width, *, cell=dict, **kwargs)"
    assert public_signatures.signature("a property") == ""


def test_signature_in_help_names_arrays_by_one_word():
    assert public_signatures.current()  # imports all modules
    modules = [module for name, module in sys.modules.items() if name.startswith("tfattn.")]
    values = [value for module in modules for value in vars(module).values()]
    values += [own for value in values if inspect.isclass(value) for own in vars(value).values()]
    written = {
        value: str(inspect.signature(value)) for value in values if inspect.isfunction(value)
    }
    assert "ArrayLike" in written[tfattn.plot.heatmaps]
    assert not {f"{f.__module__}.{f.__name__}" for f in written if "_typing." in written[f]}


def test_docstring_of_a_public_name_has_a_sentence_an_example_and_every_argument():
    shared = {"dtype", "name", "kwargs", "args"}
    for name, public in CALLABLES.items():
        text = inspect.getdoc(public)
        assert public.__doc__ is not None, name  # its own, not its base's
        assert text.splitlines()[0].endswith("."), f"{name}: the first line is no sentence"
        assert "Example" in text and ">>>" in text, f"{name}: no example"
        if not re.search("(Args|other arguments).*: those of `", text):
            arguments = set(inspect.signature(public).parameters) - shared
            lacking = {a for a in arguments if not re.search(rf"\b{a}\b", text)}
            assert not lacking, f"{name}: the docstring lacks {lacking}"
    for name in ("masks", "biases", "kernels", "scalings", "kernel_regression"):
        module = PUBLIC[name]
        assert all(inspect.getdoc(getattr(module, inner)) for inner in module.__all__), name


def test_docstring_of_a_layer_names_its_source_and_of_attention_the_order_of_arguments():
    of_attention = 0
    for name, layer in CLASSES.items():
        if not issubclass(layer, keras.layers.Layer) or name in BASES:
            continue
        told = "\nSource: " in inspect.getdoc(layer)
        assert told, f'end the docstring of {name} with "Source: <authors, year, identifier>"'
        if issubclass(layer, AttentionLayer):
            of_attention += 1
            text = " ".join(inspect.getdoc(layer).split())
            arguments = ", ".join([*inspect.signature(layer.call).parameters][1:4])
            assert "(query=" in text, name  # the example names them
            told = "Call arguments, Returns: those of `Attention`" in text
            assert told or f"`({arguments})` in Keras's order" in text, name
            assert "tfattn.layers.attention.base" not in text  # which users cannot import
    assert of_attention == 6


def test_public_class_is_registered_under_the_name_of_the_package():
    registered = keras.saving.get_custom_objects().items()
    ours = [name for name, thing in registered if thing.__module__.split(".")[0] == "tfattn"]
    assert len(ours) > 20
    assert all(name.startswith("tfattn>") for name in ours)
    for name in CLASSES.keys() - BASES:
        assert keras.saving.get_registered_name(CLASSES[name]) == f"tfattn>{name}"


@pytest.mark.slow
def test_attention_without_tensorflow_and_all_that_is_optional_gives_the_numbers_of_the_formula():
    # Keras itself looks for matplotlib: so not what is loaded counts, but what tfattn asks for, and
    # that it can do without. Keras's NumPy backend is itself made with SciPy and JAX.
    pytest.importorskip("jax")
    extras = ("matplotlib", "sentencepiece", "sacrebleu", "sklearn")
    script = f"import tfattn\nprint(*sorted(set(asked)))\n{FORMULA}"
    script = f"BLOCKED = {('tensorflow', *extras)!r}\n{WATCH}\n{script}"
    asked = printed("-c", script, KERAS_BACKEND="numpy").splitlines()[-1].split()
    # The last two come with tfattn, for kernel regression, and are asked for where it is used.
    assert not {*asked} & {*extras, "tensorflow", "scipy", "threadpoolctl"}
    assert "keras" in asked


@pytest.mark.tensorflow
@pytest.mark.slow
def test_training_asks_for_no_tensorflow_but_to_let_go_of_gradients(monkeypatch):
    """Nor for the modules that import it. What modules ask for at their top: `test_imports.py`."""
    real, askers = builtins.__import__, set()

    def watching(name, globals=None, locals=None, fromlist=(), level=0):
        who = (globals or {}).get("__name__", "")
        asked = [name, *(f"{name}.{each}" for each in fromlist or ())]
        if who.split(".")[0] == "tfattn" and any(re.match(OF_TENSORFLOW, each) for each in asked):
            askers.add(who)
        return real(name, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", watching)
    model = tfattn.Transformer(11, num_layers=1, width=8, num_heads=2, hidden_dim=16)
    model.compile("sgd", tfattn.MaskedCrossentropy(), metrics=[tfattn.MaskedAccuracy()])
    ids = np.array([[2, 3, 5, 0]])
    model.fit((ids, ids), ids, verbose=0)
    # Which TensorFlow's registry would keep for ever.
    assert askers == {"tfattn.core.engine.tensorflow.gradients"}


@pytest.mark.slow
def test_import_costs_no_more_than_a_tenth_of_that_of_keras():
    clock = "from time import process_time as now\nstart = now()\nimport keras\nmiddle = now()\n"
    script = f"{clock}import tfattn\nprint((now() - middle) / (middle - start))"
    # Again where the machine was busy.
    assert any(float(printed("-c", script)) < 0.1 for _ in range(2))
