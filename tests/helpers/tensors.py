"""Backends for tests: tensors as NumPy arrays, gradients, compiled functions.

A test that goes through these runs on TensorFlow, JAX and PyTorch alike. One that is about
TensorFlow has the marker `tensorflow`, and may use `tf`.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest

BACKEND = keras.backend.backend()
tf = torch = jax = None
if BACKEND == "tensorflow":
    import tensorflow as tf
elif BACKEND == "torch":
    import torch
elif BACKEND == "jax":
    import jax

as_tensor = keras.ops.convert_to_tensor
needs_float64 = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="about float64, in which Keras computes on TensorFlow alone"
)
# Of a search: its first step, and the step in its loop. On JAX a step that belongs to no object
# with `variables` is traced once more, to see which ones it reads.
CALLS_A_TRACE = 4 if BACKEND == "jax" else 2
needs_compiling = pytest.mark.skipif(
    BACKEND == "torch", reason="about compiled loops: on PyTorch a search runs as it is"
)
needs_xla = pytest.mark.skipif(BACKEND == "torch", reason="about XLA, which PyTorch does without")
# `jit_compile` of Keras, or of `compiled`: on TensorFlow XLA, as on JAX at all times.
JIT = [False, pytest.param(True, marks=needs_xla)]
FLOAT64 = pytest.param("float64", marks=needs_float64)
# Parameters of a test of all float dtypes.
FLOATS = ["float16", "bfloat16", "float32", *(["float64"] if BACKEND == "tensorflow" else [])]


def numpy(tensor: Any) -> np.ndarray:
    """The tensor's numbers. NumPy has no bfloat16, which becomes float32."""
    if dtype_of(tensor) == "bfloat16":
        tensor = keras.ops.cast(tensor, "float32")
    return keras.ops.convert_to_numpy(tensor)


if BACKEND == "torch":
    # What tests compare are numbers. PyTorch refuses NumPy a tensor that a gradient may be asked
    # of, as every output of a layer is, and one in bfloat16; and it has arguments of its own.

    def _array(tensor, dtype=None, copy=None):
        in_docstring = sys._getframe(1).f_code.co_filename.startswith("<doctest")
        if tensor.requires_grad and not in_docstring:
            _by_a_test()
        tensor = tensor.detach().cpu()
        return np.asarray(
            (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(), dtype
        )

    def _array_function(tensor, function, types, arguments, options):
        _by_a_test()
        arguments, options = keras.tree.map_structure(
            lambda x: _array(x) if isinstance(x, torch.Tensor) else x, (arguments, options)
        )
        return function(*arguments, **options)

    def _array_wrap(tensor, array, context=None, return_scalar=False):
        _by_a_test()
        return array

    def _by_a_test():
        """The package itself lets NumPy compute with no tensor: it would lose its gradient."""
        caller = sys._getframe(2).f_globals.get("__name__", "")
        assert not caller.startswith("tfattn."), f"{caller} lets NumPy compute with a tensor"

    torch.Tensor.__array__ = _array
    torch.Tensor.__array_function__ = _array_function
    torch.Tensor.__array_wrap__ = _array_wrap


def dtype_of(tensor: Any) -> str:
    return keras.backend.standardize_dtype(tensor.dtype)


def both_ways(
    function: Callable,
    tensors: Sequence[Any],
    upstream: Any = None,
    variables: Sequence[keras.Variable] = (),
    has_aux: bool = False,
) -> tuple[Any, list[Any]]:
    """A function's output, and its gradients.

    Args:
        function: of the tensors, to one tensor or a list of them.
        upstream: the gradient of each output, in the output's structure; ones where it is None.
        variables: what the function reads besides the tensors.
        has_aux: whether the function gives (output, what else is asked for).

    Returns:
        (output, gradients of the tensors and then of the variables). What does not depend on one of
        them has the gradient None; zeros on JAX, which cannot tell.
    """
    tensors = [as_tensor(x) for x in tensors]
    run = function if has_aux else lambda *tensors: (function(*tensors), ())
    (output, aux), gradients = _VJP[BACKEND](run, tensors, upstream, list(variables))
    return (output, aux) if has_aux else output, list(gradients)


def _upstream_of(output: Any, upstream: Any) -> Any:
    if upstream is None:
        return keras.tree.map_structure(keras.ops.ones_like, output)
    return keras.tree.map_structure(
        lambda y, x: keras.ops.cast(as_tensor(y), x.dtype), upstream, output
    )


def _by_tensorflow(function, tensors, upstream, variables):
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        output, aux = function(*tensors)
    sources = [*tensors, *(variable.value for variable in variables)]
    gradients = tape.gradient(output, sources, _upstream_of(output, upstream))
    # The gradient of a gather is `tf.IndexedSlices`.
    return (output, aux), [x if x is None else tf.convert_to_tensor(x) for x in gradients]


def _by_jax(function, tensors, upstream, variables):
    def run(tensors, values):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return function(*tensors)

    values = [variable.value for variable in variables]
    output, pull, aux = jax.vjp(run, tensors, values, has_aux=True)
    on_tensors, on_variables = pull(_upstream_of(output, upstream))
    return (output, aux), [*on_tensors, *on_variables]


def _by_torch(function, tensors, upstream, variables):
    is_within = any(x.requires_grad for x in tensors)  # what another gradient is asked of
    tensors = [
        x if x.requires_grad else x.detach().requires_grad_(x.is_floating_point()) for x in tensors
    ]
    output, aux = function(*tensors)
    sources = [*tensors, *(variable.value for variable in variables)]
    outputs = keras.tree.flatten(output)
    upstream = keras.tree.flatten(_upstream_of(output, upstream))
    pairs = [(y, g) for y, g in zip(outputs, upstream, strict=True) if y.requires_grad]
    if not pairs:  # no output depends on anything
        return (output, aux), [None] * len(sources)
    outputs, upstream = zip(*pairs, strict=True)
    wanted = [x for x in sources if x.requires_grad]
    found = iter(
        torch.autograd.grad(outputs, wanted, upstream, allow_unused=True, create_graph=is_within)
    )
    return (output, aux), [next(found) if x.requires_grad else None for x in sources]


_VJP = {"tensorflow": _by_tensorflow, "jax": _by_jax, "torch": _by_torch}


def compiled(function: Callable, jit: bool = False) -> Callable:
    """The function as the backend compiles it; PyTorch runs it as it is.

    Args:
        function: of tensors.
        jit: whether TensorFlow compiles it by XLA, as JAX always does.
    """
    if BACKEND == "tensorflow":
        return tf.function(function, jit_compile=jit, autograph=False)
    return jax.jit(function) if BACKEND == "jax" else function


@contextlib.contextmanager
def floatx(name: str) -> Iterator[None]:
    """Another default dtype, and the policy that Keras makes of it when first asked for one."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(name)
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])
