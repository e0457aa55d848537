"""Imports run strictly downward, read from the source, so that a lazy import counts too; and each
package keeps to its budget of lines.
"""

import ast
import collections
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
SIDES = {"data", "decoding", "plot", "training"}  # know level 0 and themselves
TOP_LEVEL = 4  # knows the sides too

# Lines of Python, at most. What needs more takes from another row.
BUDGET = {
    "top": 950,  # with the modules of level 0
    "core": 6810,
    "layers": 4960,
    "models": 1200,
    "kernel_regression": 2710,
    "decoding": 3350,
    "training": 1750,
    "data": 2360,
    "plot": 1300,
    "interpret": 580,
    "convert": 2310,
    "translator": 1920,
    "examples": 100,
}

# The memory-linear paths are TensorFlow's own: the engine's, a package of its own, and the loss's.
# And TensorFlow's graphs have gradients to let go of.
MAY_USE_TENSORFLOW = {
    "tfattn._gradients",
    "tfattn.core.engine.tensorflow",
    "tfattn.training.streamed",
}

# Looked up when first used: never at the top of a module.
EXTRAS = {"ctranslate2", "matplotlib", "sacrebleu", "sacremoses", "sentencepiece", "tf2onnx"}


SOURCES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): (
        path.read_text(encoding="utf-8")
    )
    for path in sorted(ROOT.rglob("*.py"))
}


@functools.cache
def imports(source):
    """Every name that a module imports, `(dotted name, whether it is at the top of the module)`."""
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
            assert node.level == 0, f"imports are absolute: {ast.unparse(node)}"
            found += [(f"{node.module}.{alias.name}", node not in lazy) for alias in node.names]
    return found


def roots(source, only_top=False):
    """The packages that a module imports."""
    return {dotted.split(".")[0] for dotted, top in imports(source) if top or not only_top}


def planted(module, line):
    """The sources with a line more, of a module that may be a new one."""
    return {**SOURCES, module: f"{SOURCES.get(module, '')}\n{line}\n"}


def place(module):
    _, *below = module.split(".")
    return below[0] if below and below != ["__main__"] else "top"


def faults(sources):
    """What breaks the order of the levels, as sentences."""

    def module_of(dotted):  # `from tfattn.core import masks` is an arrow to the module
        while dotted not in sources:
            dotted = dotted.rpartition(".")[0]
        return dotted

    graph = {
        name: {module_of(d) for d, _ in imports(source) if d.split(".")[0] == "tfattn"}
        for name, source in sources.items()
    }
    found = []
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


@pytest.mark.slow
def test_imports_run_downward_and_in_no_loop():
    assert {place(module) for module in SOURCES} <= {*LEVELS, *SIDES, "top"}
    assert len(SOURCES) > 20  # the reader has found the package
    assert faults(SOURCES) == []
    for module, line, target in UPWARDS:
        assert f"{module} imports {target}" in faults(planted(module, line)), line
    loop = planted("tfattn.core.masks", "from tfattn.core import softmax")
    assert "a loop: " in faults(loop)[0]


def over_budget(sources):
    """(Package, its lines) of each package above its budget."""
    lines = collections.Counter()
    for module, source in sources.items():
        here = place(module)
        lines[here if here in BUDGET else "top"] += source.count("\n")
    return [(here, number) for here, number in lines.items() if number > BUDGET[here]]


def test_packages_keep_to_their_budgets_of_lines():
    assert set(BUDGET) == {*LEVELS, *SIDES, "top"} - {n for n, at in LEVELS.items() if at == 0}
    assert over_budget(SOURCES) == []
    ((here, number),) = over_budget(planted("tfattn.interpret.more", "x = 1\n" * 1000))
    assert here == "interpret" and number > 1000


@pytest.mark.slow
def test_kernel_regression_is_numpy_alone_and_level_0_the_standard_library():
    for name, source in SOURCES.items():
        here, others = place(name), roots(source) - {"tfattn"}
        if here == "kernel_regression":
            packages = {d.split(".")[1] for d, _ in imports(source) if d.startswith("tfattn.")}
            packages -= {here}
            assert {LEVELS.get(each) for each in packages} <= {0} and not packages & OF_KERAS, name
            assert not others & {"keras", "tensorflow"}, name
        elif LEVELS.get(here) == 0:
            backend = {"keras", "tensorflow"} if here in OF_KERAS else set()
            assert others <= sys.stdlib_module_names | backend, name


def may_use_tensorflow(module):
    return any(
        module == allowed or module.startswith(f"{allowed}.") for allowed in MAY_USE_TENSORFLOW
    )


def out_of_place(sources):
    """The modules below the top level that import TensorFlow and may not."""
    return [
        name
        for name, source in sources.items()
        if LEVELS.get(place(name), TOP_LEVEL) < TOP_LEVEL
        if "tensorflow" in roots(source) and not may_use_tensorflow(name)
    ]


@pytest.mark.slow
def test_layers_and_models_import_no_tensorflow_and_no_module_an_extra_at_its_top():
    assert out_of_place(SOURCES) == []
    for module in ("tfattn.core.masks", "tfattn.core.streamed_too"):
        line = "def later():\n    import tensorflow as tf\n"
        assert out_of_place(planted(module, line)) == [module]
    users = [name for name, source in SOURCES.items() if "tensorflow" in roots(source)]
    for held in MAY_USE_TENSORFLOW:  # no place is held for a module that is gone
        assert any(user.startswith(held) for user in users), held
    for name, source in SOURCES.items():
        top = roots(source, only_top=True)
        assert not top & EXTRAS, name
        assert "tensorflow" not in top or may_use_tensorflow(name), name


def private_keras(source):
    """Uses of Keras that are not its public API: `keras.src`, and names with an underscore."""

    def private(dotted):
        root, *rest = dotted.split(".")
        return root == "keras" and any(part == "src" or part.startswith("_") for part in rest)

    found = [dotted for dotted, _ in imports(source) if private(dotted)]
    found += [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and re.match("src$|_", node.attr)
        if private(ast.unparse(node))
    ]
    return found


@pytest.mark.slow
def test_keras_is_used_through_its_public_api_alone():
    found = {name: private_keras(source) for name, source in SOURCES.items()}
    assert {name: uses for name, uses in found.items() if uses} == {}
    imported = ["import keras.src", "from keras.src import ops", "from keras import src"]
    for use in (*imported, "keras.src.ops", "keras._x"):
        assert private_keras(use), use
