"""Imports run strictly downward: read from the source, so that a lazy import counts too."""

import ast
import functools
import graphlib
import pathlib
import re
import sys

import pytest

import tfattn

ROOT = pathlib.Path(tfattn.__file__).parent

LEVELS = {
    "_arguments": 0,
    "_checks": 0,
    "_factors": 0,
    "_files": 0,
    "_gradients": 0,
    "_optional": 0,
    "_past": 0,
    "_program": 0,
    "_types": 0,
    "core": 1,
    "layers": 2,
    "kernel_regression": 3,
    "models": 3,
    "convert": 4,
    "examples": 4,
    "interpret": 4,
    "translator": 4,
}
OF_KERAS = {"_gradients", "_program"}  # of level 0, for those who compute with Keras
KERAS_MODEL = "tfattn.kernel_regression.keras_model"  # the others there compute in NumPy
SIDES = {"data", "decoding", "exercises", "plot", "training"}  # know level 0 and themselves
TOP_LEVEL = 4  # knows the sides too

# The memory-linear paths are TensorFlow's own: the engine's, a package of its own, and the loss's.
# And TensorFlow's graphs have gradients to let go of.
MAY_USE_TENSORFLOW = {
    "tfattn._gradients",
    "tfattn.core.engine.tensorflow",
    "tfattn.training.streamed",
    "tfattn.training.streamed_divergence",
}

# Looked up when first used: never at the top of a module.
EXTRAS = {"ctranslate2", "matplotlib", "sacrebleu", "sacremoses", "sentencepiece", "tf2onnx"}


def modules(root=ROOT):
    """Name of every module to its source."""
    names = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return names


def imports(name, sources):
    """Every name that a module imports, `(dotted name, whether it is at the top of the module)`."""
    return imports_of(name, sources[name])


@functools.cache
def imports_of(name, source):
    tree = ast.parse(source)
    lazy = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node not in lazy) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            found += [(f"{node.module}.{alias.name}", node not in lazy) for alias in node.names]
    return found


def arrows(sources):
    """Module to the modules of tfattn that it imports: `from tfattn.core import masks` is an arrow
    to the module.
    """

    def module_of(dotted):
        while dotted not in sources:
            dotted = dotted.rpartition(".")[0]
        return dotted

    own = {
        name: [d for d, _ in imports(name, sources) if d.split(".")[0] == "tfattn"]
        for name in sources
    }
    return {
        name: {module_of(dotted) for dotted in dotted_names} for name, dotted_names in own.items()
    }


def place(module):
    _, *below = module.split(".")
    return below[0] if below and below != ["__main__"] else "top"


def faults(sources):
    """What breaks the order of the levels, as sentences."""
    graph, found = arrows(sources), []
    for module, targets in graph.items():
        here = place(module)
        for target in sorted(targets):
            there = place(target)
            allowed = (
                here == "top"
                or LEVELS.get(there) == 0
                or (here in SIDES and there == here)
                or (here in LEVELS and there in LEVELS and LEVELS[there] <= LEVELS[here])
                or (LEVELS.get(here) == TOP_LEVEL and there in SIDES)
            )
            if not allowed:
                found.append(f"{module} imports {target}")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append("a loop: " + " -> ".join(error.args[1]))
    return found


@pytest.mark.slow
def test_every_module_has_a_level_and_imports_run_downward_in_no_loop():
    sources = modules()
    assert {place(module) for module in sources} <= {*LEVELS, *SIDES, "top"}
    assert len(sources) > 20  # the reader has found the package
    assert faults(sources) == []


def test_kernel_regression_is_numpys_but_for_its_keras_model_and_level_0_the_standard_librarys():
    sources = modules()
    for name, here in ((name, place(name)) for name in sources):
        dotted = [dotted for dotted, _ in imports(name, sources)]
        others = {root for root in (d.split(".")[0] for d in dotted) if root != "tfattn"}
        if here == "kernel_regression":
            packages = {d.split(".")[1] for d in dotted if d.startswith("tfattn.")} - {here}
            if name == KERAS_MODEL:
                assert "models" not in packages
                continue
            assert {LEVELS.get(each) for each in packages} <= {0} and not packages & OF_KERAS, name
            assert not others & {"keras", "tensorflow"}, name
        elif LEVELS.get(here) == 0:
            backend = {"keras", "tensorflow"} if here in OF_KERAS else set()
            assert others <= sys.stdlib_module_names | backend, name


HEADS = "tfattn.layers.attention.single_head"
UPWARDS = [
    ("tfattn.core.masks", f"from {HEADS} import Attention", HEADS),
    ("tfattn.core.masks", "from tfattn.layers import attention", "tfattn.layers.attention"),
    (
        "tfattn.core.masks",
        "def later():\n    import tfattn.models.transformer",
        "tfattn.models.transformer",
    ),
    (HEADS, "from tfattn import Transformer", "tfattn"),
    (HEADS, "from tfattn.training import losses", "tfattn.training.losses"),
    ("tfattn.training.losses", "from tfattn.core import masks", "tfattn.core.masks"),
    ("tfattn.decoding.greedy", "from tfattn import convert", "tfattn.convert"),
    ("tfattn._checks", "from tfattn.core import masks", "tfattn.core.masks"),
    ("tfattn.models.transformer", "from tfattn import convert", "tfattn.convert"),
    ("tfattn.translator.folder", "import tfattn", "tfattn"),
]


def test_a_planted_import_that_runs_up_or_in_a_loop_is_caught():
    sources = modules()

    def faults_with(module, line):
        return faults({**sources, module: f"{sources[module]}\n{line}\n"})

    for module, line, target in UPWARDS:
        assert f"{module} imports {target}" in faults_with(module, line), line
    assert "a loop: " in faults_with("tfattn.core.masks", "from tfattn.core import softmax")[0]


def may_use_tensorflow(module):
    return any(
        module == allowed or module.startswith(f"{allowed}.") for allowed in MAY_USE_TENSORFLOW
    )


def tensorflow_users(sources):
    return {
        name
        for name in sources
        for dotted, _ in imports(name, sources)
        if dotted.split(".")[0] == "tensorflow"
    }


def out_of_place(sources):
    return [
        name
        for name in tensorflow_users(sources)
        if LEVELS.get(place(name), 4) < 4 and not may_use_tensorflow(name)
    ]


@pytest.mark.slow
def test_layers_and_models_import_no_tensorflow():
    sources = modules()
    assert out_of_place(sources) == []
    # the reader sees an import inside a function
    assert "tfattn.data.batches" in tensorflow_users(sources)
    # no place is held for a module that is gone
    for place_held in MAY_USE_TENSORFLOW:
        assert any(user.startswith(place_held) for user in tensorflow_users(sources))
    # planted ones are caught
    for module in ("tfattn.core.masks", "tfattn.core.streamed_too"):
        line = "def later():\n    import tensorflow as tf\n"
        assert out_of_place({**sources, module: f"{sources.get(module, '')}\n{line}"}) == [module]


def test_nothing_optional_is_imported_at_the_top_of_a_module():
    sources = modules()
    for name in sources:
        top = {dotted.split(".")[0] for dotted, at_top in imports(name, sources) if at_top}
        assert not top & EXTRAS, name
        assert "tensorflow" not in top or may_use_tensorflow(name), name


def private_keras(source):
    """Uses of Keras that are not its public API: `keras.src`, and names with an underscore."""

    def private(dotted):
        root, *rest = dotted.split(".")
        return root == "keras" and any(part == "src" or part.startswith("_") for part in rest)

    found = [dotted for dotted, _ in imports("it", {"it": source}) if private(dotted)]
    found += [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and re.match("src$|_", node.attr)
        if private(ast.unparse(node))
    ]
    return found


@pytest.mark.slow
def test_keras_is_used_through_its_public_api_alone():
    found = {name: private_keras(source) for name, source in modules().items()}
    assert {name: uses for name, uses in found.items() if uses} == {}
    imported = ["import keras.src", "from keras.src import ops", "from keras import src"]
    for planted in (*imported, "keras.src.ops", "keras._x"):
        assert private_keras(planted), planted
