"""The choice of dense, streamed or fused attention, by backend, sizes, scope and device."""

import math
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Size, Tensor
from tfattn.core.call import AttentionCall
from tfattn.core.engine import STREAMING_BACKENDS, dense, devices, fused, scan, scope, sizes
from tfattn.core.gradients import has_tangents_in_graph
from tfattn.core.scores import facts_of
from tfattn.core.tensors import shape_of


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
        return tensorflow.run(call, dropout)
    return tensorflow.choose(
        by_blocks,
        lambda: dense.run(call, None if dropout is None else dropout.drop),
        lambda: tensorflow.run(call, dropout, shared=True),
    )


def streams(call: AttentionCall) -> bool | Tensor:
    """Whether a call streams: a bool, or a bool tensor where sizes are unknown until run time."""
    path, backend = call.path, keras.backend.backend()
    able = backend in STREAMING_BACKENDS and not call.return_weights and call.normalizer is None
    if path is not None and scope.checked("attend", path) == "streamed" and not able:
        expected = "be 'dense' with this backend, or where the weights are returned"
        if call.normalizer is not None:
            expected = "be 'dense' with a `normalizer`, which needs all scores of a query at once"
        _checks.fail("attend", "path", expected, path)
    path = scope.wanted() if path is None else path
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
