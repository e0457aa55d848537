"""The API: one page per public name, and an index, written before Sphinx reads its pages.

autosummary makes the index. Its pages list members that Keras inherits too, and it has no groups.
"""

import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Names of `tfattn` by what they are for; those of its modules come after, from their `__all__`.
GROUPS = {
    "Attention": [
        "DotProductAttention",
        "AdditiveAttention",
        "BilinearAttention",
        "Attention",
        "MultiHeadAttention",
        "NadarayaWatson",
        "AttentionPooling",
        "attention_weights",
        "layers.attention.base.AttentionLayer",
    ],
    "Scores": [
        "DotProductScore",
        "AdditiveScore",
        "BilinearScore",
        "CosineScore",
        "KernelScore",
        "NormalizedDotProductScore",
        "SoftCapScore",
        "Score",
    ],
    "Normalizers": ["AttentionSinks", "Sparsemax", "TopKSoftmax", "Normalizer"],
    "Positions": [
        "SinusoidalPositionalEncoding",
        "LearnedPositionalEncoding",
        "RotaryPositions",
        "AlibiPositions",
        "RelativePositionBias",
        "HeadPositions",
    ],
    "Transformer blocks": [
        "TransformerEncoderBlock",
        "TransformerDecoderBlock",
        "AddNorm",
        "PositionwiseFeedForward",
        "GatedFeedForward",
    ],
    "Recurrent layers": ["RecurrentEncoder", "RecurrentDecoder"],
    "Models": [
        "Transformer",
        "TransformerEncoder",
        "TransformerDecoder",
        "CausalLM",
        "BahdanauSeq2Seq",
        "kernel_regression.KernelRegressor",
        "load_example",
    ],
    "Losses, metrics, schedules": [
        "MaskedCrossentropy",
        "MaskedAccuracy",
        "TransformerSchedule",
        "InverseSquareRootSchedule",
    ],
    "Search": [
        "translate",
        "translate_stream",
        "decoding.translate_n_best",
        "decoding.log_probabilities",
        "decoding.Ensemble",
        "decoding.Stepper",
        "GreedySearch",
        "BeamSearch",
        "decoding.PooledBeamSearch",
        "Sampling",
        "decoding.Search",
        "decoding.Hypotheses",
        "decoding.ScoredText",
        "decoding.Past",
    ],
    "The engine": ["attend", "attention_path", "merge_attentions", "masked_softmax"],
}
MODULES = {
    "masks": "Masks",
    "biases": "Biases",
    "scalings": "Scalings of rotary positions",
    "kernels": "Kernels",
    "kernel_regression": "Kernel regression",
    "kernel_regression.kernels": "Kernels of kernel regression",
    "normalizers": "Normalizers, as functions",
    "rules": "Rules of decoding",
    "plot": "Figures",
    "data": "Data",
    "convert": "Weights from elsewhere",
    "training": "Training",
    "interpret": "Interpretation",
}
# Methods of Keras's API.
_LEFT_OUT = {
    "build",
    "compute_mask",
    "compute_output_shape",
    "compute_output_spec",
    "from_config",
    "get_build_config",
    "get_config",
}
# Base classes whose pages tell how to write one's own: what they define is on their pages alone.
BASES = (
    *("Score", "HeadPositions", "layers.attention.base.AttentionLayer"),
    *("masks.Mask", "biases.Bias", "scalings.Scaling", "decoding.Search", "rules.Rule"),
)
_INDEX = "One page per public name. Each page ends with the tutorials that use the name."


@functools.cache
def groups() -> dict[str, tuple[str, list[str]]]:
    """From a group's title to its first words and its names, all below `tfattn`."""
    import tfattn

    result: dict[str, tuple[str, list[str]]] = {}
    listed = {name for names in GROUPS.values() for name in names}
    for title, names in GROUPS.items():
        result[title] = ("", [name for name in names if _there(tfattn, name)])
    for module, title in MODULES.items():
        inside = found(module) or importlib.import_module(f"tfattn.{module}")
        names = [name for name in inside.__all__ if _is_of(inside, name, listed)]
        summary = inspect.getdoc(inside).split("\n\n")[0]
        result[title] = (f"`tfattn.{module}`. {summary}", [f"{module}.{name}" for name in names])
    public = {*tfattn.__all__, *(f"decoding.{name}" for name in tfattn.decoding.__all__)}
    public -= {f"decoding.{name}" for name in tfattn.__all__}  # which have their page at the top
    missing = public - listed - set(MODULES)
    if missing:
        raise ValueError(f"docs/extensions/api.py: GROUPS lacks {', '.join(sorted(missing))}")
    return result


def _is_of(module, name, listed):
    """Whether a name of a module has its page there, not in a group; a module has no page."""
    thing, package = getattr(module, name), _package()
    grouped = name in listed and thing is getattr(package, name, None)
    return not grouped and not inspect.ismodule(thing)


def _there(tfattn, name):
    return name in tfattn.__all__ or "." in name and found(name) is not None


def found(name: str) -> Any:
    """What has this name below `tfattn`; None where there is nothing."""
    module, _, last = f"tfattn.{name}".rpartition(".")
    try:
        return getattr(importlib.import_module(module), last, None)
    except ModuleNotFoundError:  # a public name for a module that lies deeper
        return getattr(functools.reduce(getattr, module.split(".")[1:], _package()), last, None)


def _package():
    return importlib.import_module("tfattn")


@functools.cache
def public_names() -> frozenset[str]:
    """Every name with a page, below `tfattn`."""
    return frozenset(name for _, names in groups().values() for name in names)


def own_members(thing: Any) -> Iterator[tuple[str, bool]]:
    """(name, whether it is called) of what a class of this package adds, or has from a class that
    is none of `BASES`.
    """
    bases = _bases(thing)
    for name in sorted(dir(thing)):
        if name.startswith("_") or name in _LEFT_OUT:
            continue
        if any(hasattr(base, name) for base in bases):
            continue
        static = inspect.getattr_static(thing, name)
        function = getattr(static, "__func__", getattr(static, "fget", static))
        module = getattr(function, "__module__", None) or ""
        if module.split(".")[0] != "tfattn" or not getattr(function, "__doc__", None):
            continue
        yield name, not isinstance(static, property)


def _bases(thing: Any) -> list[Any]:
    """The classes of `BASES` that a class is made from."""
    return [base for base in map(found, BASES) if base in thing.__mro__[1:]]


def short(name: str) -> str:
    """How a name stands in a title: with its module where users write that."""
    return name if name.count(".") < 3 else name.rpartition(".")[2]


def _page(name):
    thing, title = found(name), short(name).replace("_", r"\_")
    lines = [title, "=" * len(title), ""]
    if inspect.isclass(thing):
        lines += [f".. autoclass:: tfattn.{name}", ""]
        for base in filter(lambda each: found(each) in _bases(thing), BASES):
            lines += [
                f"   Its other methods are those of :py:obj:`{short(base)} <tfattn.{base}>`.",
                "",
            ]
        for member, called in own_members(thing):
            kind = "automethod" if called else "autoproperty"
            lines += [f"   .. {kind}:: tfattn.{name}.{member}", ""]
    elif callable(thing):
        lines += [f".. autofunction:: tfattn.{name}", ""]
    else:
        lines += [f".. autodata:: tfattn.{name}", ""]
    lines += [f".. minigallery:: tfattn.{name}", "   :add-heading: In the tutorials", ""]
    if "." not in name:
        lines[-3] += "".join(f" tfattn.{module}.{name}" for module in ("training", "decoding"))
    return "\n".join(lines)


def _index():
    lines = ["API", "===", "", _INDEX, "", ".. currentmodule:: tfattn", ""]
    for title, (words, names) in groups().items():
        lines += [title, "-" * len(title), "", words, ""]
        lines += [".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   {name}" for name in names]
        lines += ["", ".. toctree::", "   :hidden:", f"   :caption: {title}", ""]
        lines += [f"   {short(name)} <tfattn.{name}>" for name in names]
        lines += [""]
    return "\n".join(lines)


def _write(app):
    folder = Path(app.srcdir) / "api"
    folder.mkdir(exist_ok=True)
    pages = {f"tfattn.{name}.rst": _page(name) for name in public_names()}
    pages["index.rst"] = _index()
    for path in folder.glob("*.rst"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app):
    app.setup_extension("sphinx.ext.autosummary")
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True}
