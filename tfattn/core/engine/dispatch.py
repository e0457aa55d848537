"""The choice of dense, streamed or fused attention, by backend, sizes, device and a scope."""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Size, Tensor
from tfattn.core.call import AttentionCall
from tfattn.core.engine import STREAMING_BACKENDS, dense, devices, fused, scan, sizes
from tfattn.core.engine.tensorflow.gradients import has_tangents_in_graph
from tfattn.core.scores import facts_of
from tfattn.core.tensors import is_in_graph, shape_of


def run(call: AttentionCall) -> Any:
    """The result of `core.attend`, by the implementation that suits the call."""
    by_blocks = streams(call)
    if by_blocks is False:
        return dense.run(call)
    if keras.backend.backend() != "tensorflow":
        if 0 in (call.query.shape[-2], call.key.shape[-2]):
            return dense.run(call)  # there are no blocks
        return scan.run(call, by_kernel=fused.takes(call))
    from tfattn.core.engine.tensorflow import run as tensorflow
    from tfattn.core.engine.tensorflow.block_dropout import BlockDropout

    # Drawn once, before the choice: a generator advanced in each branch would keep the state of one
    # branch.
    dropout = BlockDropout.draw(call.dropout, call.seed) if call.dropout else None
    if by_blocks is True:
        return tensorflow.run(call, dropout, shared=is_in_graph(call.query))
    return tensorflow.choose(
        by_blocks,
        lambda: dense.run(call, None if dropout is None else dropout.drop),
        lambda: tensorflow.run(call, dropout, shared=True),
    )


def streams(call: AttentionCall) -> bool | Tensor:
    """Whether a call streams: a bool, or a bool tensor where sizes are unknown until run time."""
    path, backend = call.path, keras.backend.backend()
    able = backend in STREAMING_BACKENDS and not call.return_weights and call.normalizer is None
    if path is not None and _checked_path("attend", path) == "streamed" and not able:
        expected = "be 'dense' with this backend, or where the weights are returned"
        if call.normalizer is not None:
            expected = "be 'dense' with a `normalizer`, which needs all scores of a query at once"
        _checks.fail("attend", "path", expected, path)
    path = wanted_path() if path is None else path
    if not able or path == "dense" or isinstance(call.query, keras.KerasTensor):
        return False
    if backend != "tensorflow" and (_is_abstract(call) or (path is None and _is_exported())):
        return False
    found = path == "streamed" or _pays(call)
    if found is not False and backend == "tensorflow" and _has_tangents_in_graph(call):
        if call.path == "streamed":
            expected = "be 'dense' for a `tf.autodiff.ForwardAccumulator` inside of a graph"
            _checks.fail("attend", "path", expected, path)
        return False
    return found


def _is_abstract(call: AttentionCall) -> bool:
    """Whether only shapes are computed, from unknown sizes."""
    # Keras traces unknown sizes as symbols on JAX, and uses meta tensors on PyTorch. A symbolic
    # batch size does not matter.
    if keras.backend.backend() == "jax":
        sizes = (*call.query.shape[1:], *call.key.shape[1:])
        return not all(isinstance(size, int) for size in sizes)
    return devices.kind(call.query) == "meta"


def _is_exported() -> bool:
    """Whether PyTorch traces the call for a file, which holds one path and no custom gradient."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    jit: Any = torch.jit
    is_exporting = getattr(torch.compiler, "is_exporting", bool)  # since PyTorch 2.7
    return bool(jit.is_tracing() or is_exporting())


def _has_tangents_in_graph(call: AttentionCall) -> bool:
    learned = () if call.bias is None else call.bias.parameters()
    operands = (call.query, call.value, call.key)
    return has_tangents_in_graph((*operands, *call.parameters, *learned))


def _pays(call: AttentionCall) -> bool | Tensor:
    """Whether a kernel of the backend, or blocks, are faster than the dense path or needed."""
    thresholds = devices.entry(sizes.STREAMING_THRESHOLDS, call.query)
    pairs = (call.query.shape[-2] or 0) * (call.key.shape[-2] or 0)
    return (pairs >= thresholds.fused_pairs and fused.takes(call)) or _is_long(call, thresholds)


def _is_long(call: AttentionCall, thresholds: sizes.StreamingThresholds) -> bool | Tensor:
    known = [n for n in (call.query.shape[-2], call.key.shape[-2]) if isinstance(n, int)]
    if known and min(known) < thresholds.tokens:
        return False
    batch, *heads, _, width = shape_of(call.query)
    # An unknown batch size is seldom 1.
    rows = batch if len(known) < 2 or isinstance(batch, int) else sizes.UNKNOWN_BATCH
    facts = facts_of(call.score)
    is_product = facts.is_product or facts.cap is not None
    numbers, in_all = (1, thresholds.scores) if is_product else (width, thresholds.wide_numbers)
    is_plain = facts.is_product and call.mask is None and call.bias is None
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (call.query, call.key, call.value)}
    is_plain = is_plain and dtypes <= {"float32", "bfloat16"}
    if is_plain and devices.multiplies_bfloat16(call.query):
        in_all = thresholds.unmasked_scores
    # As floats, since the product of large sizes would overflow int32.
    pairs = _product(*call.lengths, numbers)
    return (pairs >= thresholds.pairs) & (_product(pairs, rows, *heads) >= in_all)


def _product(*factors: Size) -> Size:
    return math.prod(x if isinstance(x, (int, float)) else ops.cast(x, "float32") for x in factors)


# The open scopes, the innermost last. Scopes hold no state themselves, so that one object can be
# entered in several threads, and again within itself.
_open: contextvars.ContextVar[tuple["_Scope", ...]] = contextvars.ContextVar(
    "tfattn.attention_path", default=()
)


def attention_path(path: str | None) -> "_Scope":
    """A scope in which all attention takes one path.

        with tfattn.attention_path("dense"):
            archive.add_endpoint("serve", model.call, signature)

    Formats such as ONNX and LiteRT hold a single path. `model.export` writes them in the dense path
    by itself; other functions that trace a model for such a file belong in this scope.

    Every call in the scope takes this path, inside layers and models too, unless the call sets its
    own by `attend(path=...)` or `MultiHeadAttention(flash_attention=...)`. The innermost scope
    applies. A scope is also a decorator of functions.

    A call takes its path when it runs or is traced: a `tf.function` traced before the scope, such
    as the train function of `model.fit`, does not change, and a function traced in the scope keeps
    its path afterwards. The scope applies to its own thread, and not to the threads in which
    `tf.distribute.MirroredStrategy` trains.

    Args:
        path: "dense", which holds all scores at once and consists of plain operations; "streamed",
            block by block, except where weights are returned; or None, by size, as without a scope.
    Returns:
        A context manager that can be entered any number of times, within itself too.
    Raises:
        ValueError: `path` is not one of these, or is "streamed" with a backend that has only the
            dense path.
    Example:
        >>> tokens = np.ones((1, 7, 4), "float32")
        >>> with tfattn.attention_path("streamed"):
        ...     output = tfattn.attend(tokens, tokens)
        >>> tuple(output.shape)
        (1, 7, 4)
    """
    _checked_path("tfattn.attention_path", path)
    if path == "streamed" and keras.backend.backend() not in STREAMING_BACKENDS:
        _checks.fail("tfattn.attention_path", "path", "be 'dense' or None with this backend", path)
    return _Scope(path)


class _Scope(contextlib.ContextDecorator):
    def __init__(self, path: str | None):
        self.path = path

    def __enter__(self) -> "_Scope":
        _open.set((*_open.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        # Not always the innermost: a generator that holds a scope may be closed within another.
        inner_first = list(reversed(_open.get()))
        if self in inner_first:
            inner_first.remove(self)
        _open.set(tuple(reversed(inner_first)))


def wanted_path() -> str | None:
    """The path of the innermost open scope; None without a scope."""
    return _open.get()[-1].path if _open.get() else None


def of_format(format: str) -> "_Scope":
    """The scope of an export: a SavedModel may hold both paths, other formats the dense path."""
    if format == "tf_saved_model":
        return attention_path(wanted_path())
    if wanted_path() == "streamed":
        expected = 'be "tf_saved_model" in the scope of the streamed path, for its loops'
        _checks.fail("export", "format", expected, format)
    return attention_path("dense")


def in_scope_of_format(export: Callable[..., Any]) -> Callable[..., Any]:
    """`keras.Model.export` in the scope of its format."""

    @functools.wraps(export)
    def wrapped(
        self: keras.Model, filepath: Any, format: str = "tf_saved_model", *args: Any, **kwargs: Any
    ) -> Any:
        with of_format(format):
            return export(self, filepath, format, *args, **kwargs)

    return wrapped


# A user's own models too hold attention, and a layer that is traced cannot know for which format:
# only this method is told. The scope has no effect on layers of others.
setattr(keras.Model, "export", in_scope_of_format(keras.Model.export))  # noqa: B010


def _checked_path(who: str, path: Any) -> str | None:
    """The name of a path, or None."""
    # Not by `in` alone, which would compare an array element by element.
    if path is not None and not (isinstance(path, str) and path in ("dense", "streamed")):
        _checks.fail(who, "path", "be None, 'dense' or 'streamed'", path)
    return path
