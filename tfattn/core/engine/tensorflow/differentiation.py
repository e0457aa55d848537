"""Both passes as one function with a custom gradient, differentiable any number of times."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfattn import _checks
from tfattn.core import biases, objects
from tfattn.core import scores as score_functions
from tfattn.core.call import AttentionCall
from tfattn.core.engine import devices
from tfattn.core.engine.tensorflow.additive import Additive
from tfattn.core.engine.tensorflow.block_bias import ArrayBias, BlockBias, ObjectBias
from tfattn.core.engine.tensorflow.block_dropout import BlockDropout
from tfattn.core.engine.tensorflow.block_scores import AnyScore, BlockScore, Product
from tfattn.core.engine.tensorflow.gradients import custom_gradient, has_tangents
from tfattn.core.engine.tensorflow.local import LocalPasses
from tfattn.core.engine.tensorflow.loops import Block, in_xla_context
from tfattn.core.engine.tensorflow.online_softmax import HIDDEN
from tfattn.core.engine.tensorflow.passes import BlockwisePasses
from tfattn.core.engine.tensorflow.tiling import Tiling
from tfattn.core.scores import facts_of


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BlockwiseCall(AttentionCall):
    """A call with heads; split, its differentiable tensors come first."""

    is_pure = True
    draws: BlockDropout | None = None
    given_rank: int = 4  # of the caller's operands
    block: Block = None
    heads_together: bool = False  # whether heads must be computed together


def differentiated(call: BlockwiseCall) -> list[tf.Tensor]:
    """The output, and perhaps the log of the sums: a function of the tensors of the call, not
    recorded by the caller's tapes.

    Inside `tf.custom_gradient` the caller's tapes record every operation, and so hold every block;
    nested custom gradients make a graph build the gradients of every loop. Operations on results of
    `tf.stop_gradient` are not recorded. So second derivatives run both passes again, and
    differentiate them.
    """
    tensors, structure = objects.flatten(call)
    if has_tangents(tensors):  # forward mode differentiates the operations themselves
        return _forward(structure, *tensors)[0]
    forward, backward, backward_vjp = _functions(call, structure)
    num_differentiable = 3 + len(call.learned) + len(call.parameters)

    @custom_gradient
    def function(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
        outputs, saved = forward(*map(tf.stop_gradient, tensors))

        @custom_gradient
        def vjp(*inputs: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
            def second_vjp(*grads: tf.Tensor) -> list[tf.Tensor | None]:
                _check_under_xla(call)
                found = iter(backward_vjp(inputs, list(grads)))
                return [next(found) if x.dtype.is_floating else None for x in inputs]

            return backward(saved, *map(tf.stop_gradient, inputs)), second_vjp

        def gradients(*grad_outputs: tf.Tensor) -> list[tf.Tensor | None]:
            # The gradient of a gather is `tf.IndexedSlices`. Each input becomes a tensor of
            # the gradient's own graph: the gradient of a branch has no second derivative for
            # tensors of the forward graph.
            inputs = [tf.identity(tf.convert_to_tensor(x)) for x in (*grad_outputs, *tensors)]
            grads = [*vjp(*inputs), *[None] * (len(tensors) - num_differentiable)]
            both = zip(tensors, grads, strict=True)
            return [grad if x.dtype.is_floating else None for x, grad in both]

        return outputs, gradients

    try:
        # Copies in this graph, since captured tensors belong to the outer graph.
        return function(*map(tf.identity, tensors))
    except TypeError as error:
        if "variables" not in str(error):
            raise
        expected = "get their variables from `parameters`: read inside, they have no gradient"
        _checks.fail("attend", "score and bias", expected, call.score)


def _functions(call: BlockwiseCall, structure: objects.Structure) -> tuple[Callable[..., Any], ...]:
    """Both passes and the vjp of the backward pass, which hold no tensor of the call."""
    num_outputs = 2 if call.return_log_sum_exp else 1

    def forward(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], tuple[Any, ...]]:
        return _forward(structure, *tensors)

    def backward(saved: tuple[Any, ...], *tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return _backward(structure, saved, *tensors)

    def backward_vjp(inputs: Sequence[tf.Tensor], grads: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # Copies, since a tape would sum the gradients of a tensor that is both query and key.
        inputs = [tf.identity(x) for x in inputs]
        sources = [x for x in inputs if x.dtype.is_floating]
        zero = tf.UnconnectedGradients.ZERO

        def first_derivatives() -> tuple[tf.Tensor, ...]:
            _, saved = _forward(structure, *inputs[num_outputs:])
            return _backward(structure, saved, *inputs)

        if not tf.executing_eagerly():
            # Not by a tape, which records nothing where a graph is built for forward mode.
            found = first_derivatives()
            return tf.gradients(found, sources, grads, unconnected_gradients=zero)
        with tf.GradientTape() as tape:
            tape.watch(sources)
            found = first_derivatives()
        return tape.gradient(found, sources, grads, zero)

    if tf.executing_eagerly():
        return forward, backward, backward_vjp
    # An inlined function in a branch would be differentiated several times.
    return forward, backward, compiled(backward_vjp)


def _check_under_xla(call: BlockwiseCall) -> None:
    """Raises where XLA compiles, and cannot differentiate the loops of the backward pass."""
    is_unbounded = None in (*call.query.shape[:3], *call.key.shape[:3])
    # Their gradients are written into slices of a loop, for which XLA has no derivative.
    has_slices = call.score is score_functions.additive or len(call.learned) > 0
    if (is_unbounded or has_slices) and in_xla_context():
        expected = (
            "be 'dense' (or `tfattn.attention_path(\"dense\")` be open) for second derivatives "
            "under `jit_compile=True` where a size is unknown when they are traced, of additive "
            "scores, and of biases with parameters"
        )
        _checks.fail("attend", "path", expected, "streamed")


def compiled(function: Callable[..., Any], noinline: bool = True) -> Callable[..., Any]:
    return tf.function(function, autograph=False, experimental_attributes={"_noinline": noinline})


def _forward(
    structure: objects.Structure, *tensors: tf.Tensor
) -> tuple[list[tf.Tensor], tuple[Any, ...]]:
    """The outputs, and the tensors that the backward pass needs."""
    call: BlockwiseCall = objects.unflatten(structure, tensors)
    output, sums, softmax = _passes(call).forward(call.query, call.key, call.value)
    outputs = [output, sums] if call.return_log_sum_exp else [output]
    return outputs, (outputs, softmax)


def _backward(
    structure: objects.Structure, saved: tuple[Any, ...], *inputs: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """The gradients of the differentiable tensors, from those of the outputs and all tensors."""
    grad_output, *rest = inputs
    (output, *sums), softmax = saved
    call: BlockwiseCall = objects.unflatten(structure, inputs[1 + len(sums) :])
    # Σ_keys weight · ∂weight, subtracted in the gradient of the softmax.
    delta = tf.reduce_sum(grad_output * output, -1, keepdims=True)  # (B, H, T, 1)
    if sums:
        # The weight is the derivative of the log of the sum with respect to the score. A row of
        # −inf has no weights, and its gradient is arbitrary.
        grad_sums = tf.where(tf.equal(sums[0], HIDDEN), tf.zeros_like(delta), rest[0])
        delta -= grad_sums
    operands = call.query, call.key, call.value
    grads = _passes(call).backward(*operands, softmax, grad_output, delta)
    return *(tf.cast(x, call.query.dtype) for x in grads[:3]), *grads[3:]


def _passes(call: BlockwiseCall) -> BlockwisePasses | LocalPasses:
    """The passes of a call, from the shapes of its own tensors: XLA does not know the sizes of
    another function. Both passes find the same, since the static shapes are.
    """
    facts, score = facts_of(call.score), _block_score(call)
    independent = facts.heads_independent and not call.heads_together
    # Local passes slice tokens of known width.
    if independent and call.bias is None and facts.is_product and call.value.shape[-1] is not None:
        local = LocalPasses.of(call, score)
        if local is not None:
            return local
    tiling = Tiling.of(call.query, call.key, score, call.mask, call.block, independent)
    bias = _block_bias(call, tiling, facts.is_product)
    with_sums = call.return_log_sum_exp
    return BlockwisePasses(tiling, score, call.mask, bias, call.draws, with_sums)


def _block_score(call: BlockwiseCall) -> BlockScore:
    facts = facts_of(call.score)
    if facts.is_product or facts.cap is not None:
        return Product(facts.is_scaled, facts.cap)
    if call.score is score_functions.additive and call.parameters[0].shape.is_fully_defined():
        return Additive(call.parameters)
    return AnyScore(call.score, call.given_rank, call.parameters)


def _block_bias(call: BlockwiseCall, tiling: Tiling, is_product: bool) -> BlockBias | None:
    if call.bias is None:
        return None
    if type(call.bias) is biases.explicit:
        return ArrayBias(call.learned[0], tiling)
    # On other devices a product may round to fewer digits than positions have.
    by_factors = is_product and devices.kind(call.query) == "cpu"
    return ObjectBias(call.bias, call.learned, tiling, by_factors)
