"""A backend's own attention kernel, where mask, bias and score allow: PyTorch's
`scaled_dot_product_attention`, and cuDNN's through `jax.nn.dot_product_attention`.

Neither holds the T × S scores. Both support dot products without a mask or with a causal mask over
as many queries as keys. Other calls use `scan`, and so do second derivatives on PyTorch, for which
cuDNN's kernel raises.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from tfattn._types import Tensor
from tfattn.core.call import AttentionCall
from tfattn.core.engine import devices
from tfattn.core.masks import Mask, causal
from tfattn.core.scores import facts_of


def takes(call: AttentionCall) -> bool:
    """Whether a kernel of the backend supports the call."""
    query, value, key, mask = call.query, call.value, call.key, call.mask
    if call.dropout or call.return_log_sum_exp or call.rank != 4 or call.bias is not None:
        return False
    plain = mask is None or (type(mask) is causal and query.shape[-2] == key.shape[-2])
    if not (plain and facts_of(call.score).is_product):
        return False
    # Otherwise PyTorch falls back to an implementation that holds the scores, and cuDNN raises.
    alike = query.shape[-1] == value.shape[-1] and query.dtype == key.dtype == value.dtype
    kernel = _KERNELS.get(keras.backend.backend())
    return alike and kernel is not None and kernel(query, value, key, mask)


def run(
    query: Any,
    value: Any,
    key: Any,
    score: Callable[..., Tensor],
    mask: Mask | None,
    recompute: Callable[..., Tensor],
) -> Tensor:
    """Output `(B, H, T, Dv)` of guarded operands; `recompute(query, key, value)` is the same, and
    differentiable twice.
    """
    scale = query.shape[-1] ** -0.5 if facts_of(score).is_scaled else 1.0
    options: dict[str, Any] = {"is_causal": mask is not None, "scale": scale}
    if keras.backend.backend() == "jax":
        return _by_jax(query, value, key, "cudnn", **options)
    import torch

    # PyTorch's fallback for a last axis that is not contiguous holds the scores.
    operands = [x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value)]
    options["enable_gqa"] = query.shape[1] != key.shape[1]
    output = torch.nn.functional.scaled_dot_product_attention(*operands, **options)
    is_differentiated = torch.is_grad_enabled() and output.requires_grad
    if not is_differentiated or torch.compiler.is_compiling():
        return output
    return _differentiable_twice().apply(output, recompute, *operands)


@functools.cache
def _differentiable_twice() -> Any:
    """PyTorch autograd function of (output, recompute, query, key, value) to the same output, of
    which a gradient with `create_graph` differentiates `recompute`, and any other the kernel.
    """
    import torch

    class DifferentiableTwice(torch.autograd.Function):
        @staticmethod
        def forward(
            output: Any,
            recompute: Callable[..., Tensor],
            query: Tensor,
            key: Tensor,
            value: Tensor,
        ) -> Tensor:
            return output.view_as(output)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            _, ctx.recompute, *operands = inputs
            ctx.save_for_backward(*operands)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> tuple[Tensor | None, ...]:
            if not torch.is_grad_enabled():
                return gradient, None, None, None, None
            # Views, since an operand may be computed from another operand.
            operands = [x.view_as(x) for x in ctx.saved_tensors]
            wanted = [x for x in operands if x.requires_grad]
            found = iter(
                torch.autograd.grad(ctx.recompute(*operands), wanted, gradient, create_graph=True)
            )
            return None, None, *(next(found) if x.requires_grad else None for x in operands)

    return DifferentiableTwice


def _by_jax(query: Any, value: Any, key: Any, implementation: Any, **options: Any) -> Any:
    import jax

    by_token = [x.swapaxes(1, 2) for x in (query, key, value)]  # (B, T, H, D)
    found = jax.nn.dot_product_attention(*by_token, **options, implementation=implementation)
    return found.swapaxes(1, 2)


def _torch_kernel(query: Any, value: Any, key: Any, mask: Mask | None) -> bool:
    from torch.autograd import forward_ad

    # The kernel has no derivative in forward mode.
    unpack_dual: Callable[..., Any] = forward_ad.unpack_dual
    if any(unpack_dual(x).tangent is not None for x in (query, value, key)):
        return False
    if devices.kind(query) != "cuda":
        return devices.kind(query) == "cpu"
    from torch.backends import cuda

    # The kernels differ in the GPUs, dtypes and widths that they support.
    grouped = query.shape[1] != key.shape[1]
    call = cuda.SDPAParams(query, key, value, None, 0.0, mask is not None, grouped)
    return cuda.can_use_flash_attention(call) or cuda.can_use_efficient_attention(call)


def _jax_kernel(query: Tensor, value: Tensor, key: Tensor, mask: Mask | None) -> bool:
    import jax

    # cuDNN supports 16 bits and widths divisible by 8; JAX's other implementation holds the scores.
    width = query.shape[-1]
    fits = query.dtype.itemsize == 2 and width % 8 == 0 and width <= 128
    return fits and jax.default_backend() == "gpu" and _cudnn_takes(query.dtype.name, width)


@functools.cache
def _cudnn_takes(dtype: str, width: int) -> bool:
    """Whether cuDNN has a kernel for this GPU, found by compiling a small gradient step."""
    import jax

    def total(query: Tensor, value: Tensor, key: Tensor) -> Tensor:
        return _by_jax(query, value, key, "cudnn", is_causal=True, scale=1.0).sum()

    shaped: Callable[..., Any] = jax.ShapeDtypeStruct
    operand = shaped((1, 1, 64, width), dtype)
    try:
        jax.jit(jax.grad(total, (0, 1, 2))).lower(*[operand] * 3).compile()
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


_KERNELS = {"torch": _torch_kernel, "jax": _jax_kernel}
