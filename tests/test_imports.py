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
    "_files": 0,
    "_optional": 0,
    "_program": 0,
    "_shared": 0,
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
OF_KERAS = {"_arguments", "_program", "_shared"}  # of level 0, for those who compute with Keras
SIDES = {"data", "decoding", "plot", "training"}  # know level 0 and themselves
ALSO = {  # for the streamed loss, and for the cache of any model
    ("training", "tfattn.core.engine.tensorflow.gradients"),
    ("decoding", "tfattn.layers.attention.base"),
    ("decoding", "tfattn.layers.base"),
    ("decoding", "tfattn.layers.stepping"),
    ("decoding", "tfattn.layers.tokens"),
}
TOP_LEVEL = 4  # knows the sides too

# Lines of Python, at most. What needs more takes from another row.
BUDGET = {
    "top": 630,  # with the modules of level 0
    "core": 5732,
    "layers": 4632,
    "models": 1015,
    "kernel_regression": 2096,
    "decoding": 2893,
    "training": 1207,
    "data": 2075,
    "plot": 1069,
    "interpret": 895,
    "convert": 1965,
    "translator": 1694,
    "examples": 97,
}

# The memory-linear paths are TensorFlow's own: the engine's, a package of its own, and the loss's.
MAY_USE_TENSORFLOW = {
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
                or (here, target) in ALSO
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
    ("tfattn.decoding.search", "from tfattn import convert", "tfattn.convert"),
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
    for here, number in over_budget(SOURCES):
        pytest.fail(f"{here} has {number} lines, and {BUDGET[here]} in BUDGET: remove lines of it")
    ((here, number),) = over_budget(planted("tfattn.interpret.more", "x = 1\n" * 1000))
    assert here == "interpret" and number > 1000


@pytest.mark.slow
def test_kernel_regression_is_numpy_alone_and_level_0_the_standard_library():
    for name, source in SOURCES.items():
        here, others = place(name), roots(source) - {"tfattn"}
        if here == "kernel_regression":
            table = "tfattn.core.kernels.FORMULAS"  # of any module of array functions
            found = {d for d, _ in imports(source) if d.startswith("tfattn.")} - {table}
            packages = {name.split(".")[1] for name in found} - {here}
            assert {LEVELS.get(each) for each in packages} <= {0} and not packages & OF_KERAS, name
            assert not others & {"keras", "tensorflow"}, name
        elif LEVELS.get(here) == 0:
            backend = {"keras"} if here in OF_KERAS else set()
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


# Private names of other libraries: (name, where it is used), and why no public one does.
PRIVATE = {
    ("_keras_history", "tfattn._checks"): "Keras marks symbolic products with a number as sparse; "
    "of a symbolic tensor this alone says whether it is an input",
    ("_flatten_layers", "tfattn.layers.base"): "only models have a public list of their layers; "
    "Keras's page on `DTypePolicyMap` shows this one for any layer",
    ("_flash_attention", "tfattn.layers.attention.weights"): "Keras's attention is asked for its "
    "weights in one call, though it was made with `flash_attention=True`",
    ("_return_attention_scores", "tfattn.layers.attention.weights"): "the same: Keras chooses the "
    "kernel without weights where this was False when the layer was built",
    (
        "tensorflow.python.eager.forwardprop_util",
        "tfattn.core.engine.tensorflow.gradients",
    ): "no public function says whether a forward accumulator watches a tensor",
    (
        "tensorflow.python.framework.ops",
        "tfattn.core.engine.tensorflow.gradients",
    ): "the public registry of gradients cannot let go of an entry",
    ("_registry", "tfattn.core.engine.tensorflow.gradients"): "the same",
    (
        "_gradient_op_type",
        "tfattn.core.engine.tensorflow.gradients",
    ): "the attribute of an operation that names its entry in the registry",
    (
        "tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext",
        "tfattn.core.engine.tensorflow.loops",
    ): "no public function says whether XLA compiles a graph",
    ("_noinline", "tfattn.core.engine.tensorflow.differentiation"): "the attribute of a function "
    "that keeps the optimizer from copying it into each call",
}

# Names with an underscore that are public: of named tuples, and of `os`.
PUBLIC = {"_asdict", "_exit", "_fields", "_make", "_replace"}


def is_private(name):
    return name.isidentifier() and name.startswith("_") and not name.startswith("__")


def named_by_itself(tree):
    """The private names that a source gives to something of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.alias):
            yield node.name.split(".")[-1]
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def private_names(tree):
    """The private names that a source reads: of attributes, and in strings for `getattr` or `vars`.
    Strings that are no attribute's name are endings: arguments of a method, or joined to others.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    methods = [node for node in calls if isinstance(node.func, ast.Attribute)]
    endings = [value for node in methods for value in node.args if node.func.attr != "get_attr"]
    endings += [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.BinOp)]
    endings = {id(inner) for node in endings for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and id(node) not in endings:
            yield str(node.value)


def private_uses(sources):
    """(Name, module) of each use of what another library keeps to itself."""
    trees = {module: ast.parse(source) for module, source in sources.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    shared = PUBLIC | {name for each in classes for name in named_by_itself(each)}
    shared |= {part for module in sources for part in module.split(".")}
    found = set()
    for module, tree in trees.items():
        ours = shared | set(named_by_itself(tree))
        found |= {(n, module) for n in private_names(tree) if is_private(n) and n not in ours}
        for dotted, _ in imports(sources[module]):
            root, *parts = dotted.split(".")
            hidden = {"src", "python"} & set(parts) or any(map(is_private, parts))
            if root in ("keras", "tensorflow") and hidden:
                found.add((dotted, module))
        found |= {(use, module) for use in re.findall(r"\bkeras\.src\b", ast.unparse(tree))}
    return found


@pytest.mark.slow
def test_other_libraries_are_used_through_their_public_api_except_in_a_table():
    assert private_uses(SOURCES) == set(PRIVATE)
    uses = {
        "layer._layers": "_layers",
        "getattr(model, '_functional')": "_functional",
        "{'_tracker': 1}": "_tracker",
        "import keras.src": "keras.src",
        "from keras import src": "keras.src",
        "from tensorflow.python import keras": "tensorflow.python.keras",
        "keras.src.ops": "keras.src",
    }
    for line, name in uses.items():
        assert (name, "tfattn.module") in private_uses({"tfattn.module": line}), line
