"""Random problems and their expected results, for `core/test_properties.py`, where hypothesis
draws, and for `fuzz.py`, where a generator draws.

A case is made by `choose`, a function from a sequence to one of its members; all its arrays come of
one seed that is chosen too. So whoever chooses the same has the same case.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

import tfattn
from tests import reference
from tests.helpers import paths
from tests.helpers.blockwise import blocks_of
from tests.helpers.tensors import BACKEND, as_tensor, both_ways, numpy
from tfattn import biases, masks, normalizers
from tfattn.core import kernels
from tfattn.core import scores as score_functions

Choose = Callable[[Sequence], Any]

SEEDS = range(2**16)
# Relative and absolute tolerances against float64, by dtype.
TOLERANCES = {"float64": 1e-6, "float32": 5e-4, "float16": 4e-2, "bfloat16": 2e-1}


class Sizes(NamedTuple):
    batch: int
    heads: int  # 0 for scores without an axis of heads
    groups: int
    queries: int
    keys: int
    width: int
    value_width: int

    @property
    def scores(self):
        heads = (self.heads,) if self.heads else ()
        return (self.batch, *heads, self.queries, self.keys)


def sizes_of(choose: Choose) -> Sizes:
    heads, groups = choose([(0, 0), (1, 1), (2, 1), (3, 3), (4, 2)])
    lengths = [1, 2, 3, 5, 8, 0]
    return Sizes(
        batch=choose([2, 1, 3, 0]),
        heads=heads,
        groups=groups,
        queries=choose(lengths),
        keys=choose(lengths),
        width=choose([3, 1, 4]),
        value_width=choose([2, 1, 5]),
    )


# Masks, each with its visible pairs, broadcastable to the scores.


def leaf_of(choose: Choose, sizes: Sizes, rng) -> tuple[Any, np.ndarray]:
    batch, queries, keys = sizes.batch, sizes.queries, sizes.keys
    rows = choose([batch, 1])
    number = choose([1, 2, 3, 5])

    def lengths(*shape):
        return rng.integers(0, keys + 2, shape)

    def array(*shape):
        return rng.random(shape) < choose([0.5, 0.1, 0.9])

    def by_head(mask):
        mask = np.asarray(mask)
        return mask[:, None] if sizes.heads and mask.ndim == 3 else mask

    kind = choose(
        ["causal", "window", "strided", "chunks", "chunk ends", "prefix", "prefixes", "padding"]
        + ["padding by query", "segments", "segments in order", "blocks", "square", "full"]
        + ["keys", "array"]
        + ["per head", "by head"] * bool(sizes.heads)
    )
    if kind == "causal":
        return masks.causal(), reference.causal(queries, keys)
    if kind == "window":
        return masks.window(number), reference.window(number, queries, keys)
    if kind == "strided":
        return masks.strided(number), reference.strided(number, queries, keys)
    if kind == "chunks":
        return masks.chunks(number), reference.chunks(number, queries, keys)
    if kind == "chunk ends":
        count = choose([1, number])
        ends = reference.chunk_ends(number, count, keys).astype(bool)
        return masks.chunk_ends(number, count), ends
    if kind == "prefix":
        return masks.prefix(number), np.arange(keys)[None] < number
    if kind == "prefixes":
        chosen = lengths(rows)
        return masks.prefix(chosen), by_head(reference.padding(chosen, keys))
    if kind in ("padding", "padding by query"):
        chosen = lengths(rows) if kind == "padding" else lengths(rows, queries)
        return masks.padding(chosen), by_head(reference.padding(chosen, keys))
    if kind.startswith("segments"):
        of_query, of_key = rng.integers(0, 3, (rows, queries)), rng.integers(0, 3, (rows, keys))
        if kind.endswith("order"):
            of_query, of_key = np.sort(of_query, 1), np.sort(of_key, 1)
        return masks.segments(of_query, of_key), by_head(reference.segments(of_query, of_key))
    if kind == "blocks":
        lead = choose([(), (rows,), (rows, sizes.heads)] if sizes.heads else [(), (rows,)])
        plan = array(*lead, -(-queries // number), -(-keys // number))
        return masks.blocks(plan, number), by_head(reference.blocks(plan, number, queries, keys))
    if kind == "per head":
        parts = [leaf_of(choose, sizes._replace(heads=0), rng) for _ in range(sizes.heads)]
        shape = (batch, queries, keys)
        found = reference.per_head([seen for _, seen in parts], shape)
        return masks.per_head([mask for mask, _ in parts]), found
    shape = {
        "square": (queries, keys),
        "full": (rows, queries, keys),
        "keys": (rows, 1, keys),
        "array": (choose([queries, 1]), choose([keys, 1])),
        "by head": (rows, choose([sizes.heads, 1]), queries, keys),
    }[kind]
    mask = array(*shape)
    return choose([masks.explicit, lambda mask: mask])(mask), by_head(mask)


def mask_of(choose: Choose, sizes: Sizes, rng) -> tuple[Any, np.ndarray | None]:
    """A mask or None, and its visible pairs."""
    count = choose([1, 0, 2, 3])
    if not count:
        return None, None
    mask, seen = leaf_of(choose, sizes, rng)
    for _ in range(count - 1):
        other, seen_too = leaf_of(choose, sizes, rng)
        mask = masks.every(mask)
        join = choose(["and", "or", "and not", "not"])
        if join == "and":
            mask, seen = mask & other, seen & seen_too
        elif join == "or":
            mask, seen = mask | other, seen | seen_too
        elif join == "and not":
            mask, seen = mask & ~masks.every(other), seen & ~seen_too
        else:
            mask, seen = ~mask, ~seen
    return mask, seen


# Scores with their gradients: (function, parameters, oracle, gradient). The oracle takes query and
# key of equal heads, and the parameters; the gradient also the gradient of the scores.


def score_of(choose: Choose, sizes: Sizes, rng):
    scale = sizes.width**-0.5
    name = choose(["scaled", "dot", "additive", "gaussian", "triangular", "capped"])
    if name in ("scaled", "dot"):
        factor = scale if name == "scaled" else 1.0
        function = {
            "scaled": score_functions.scaled_dot_product,
            "dot": score_functions.dot_product,
        }
        return function[name], [], lambda q, k: reference.dot_product(q, k, factor), product(factor)
    if name == "capped":
        cap = choose([1.5, 20.0])
        function = score_functions.soft_capped(score_functions.scaled_dot_product, cap)

        def gradient(q, k, upstream):
            slope = 1 - np.tanh(reference.dot_product(q, k) / cap) ** 2
            return product(scale)(q, k, upstream * slope)

        return (
            function,
            [],
            lambda q, k: reference.soft_capped(reference.dot_product(q, k), cap),
            (gradient),
        )
    if name == "additive":
        weight = rng.normal(size=(sizes.width, 1))
        return score_functions.additive, [weight], additive, of_additive
    function = score_functions.log_kernel(kernels.get(name))
    if name == "gaussian":

        def of_gaussian(q, k, upstream):
            apart = q[..., :, None, :] - k[..., None, :, :]
            pull = upstream[..., None] * apart
            return [-pull.sum(-2), pull.sum(-3)]

        return function, [], reference.log_kernel, of_gaussian
    return function, [], lambda q, k: reference.log_kernel(q, k, kernel="triangular"), None


def product(factor):
    def gradient(q, k, upstream):
        of_query = factor * np.einsum("...ts,...sd->...td", upstream, k)
        return [of_query, factor * np.einsum("...ts,...td->...sd", upstream, q)]

    return gradient


def additive(q, k, weight):
    return reference.additive(q, k, weight[:, 0])


def of_additive(q, k, weight, upstream):
    hidden = np.tanh(q[..., :, None, :] + k[..., None, :, :])
    of_hidden = upstream[..., None] * weight[:, 0] * (1 - hidden**2)
    of_weight = np.einsum("nts,ntsu->u", *(_flat(x, d) for x, d in ((upstream, 2), (hidden, 3))))
    return [of_hidden.sum(-2), of_hidden.sum(-3), of_weight[:, None]]


def _flat(x, inner):
    """With one axis before the last `inner` ones."""
    return x.reshape(math.prod(x.shape[:-inner]), *x.shape[-inner:])


def bias_of(choose: Choose, sizes: Sizes, rng, dtype):
    """(what `attend` takes of a watched tensor, that tensor or None, its array, the bias of it)."""
    queries, keys, heads = sizes.queries, sizes.keys, sizes.heads
    kind = choose(["none", "array", "alibi", "relative", "sum"])
    if kind in ("alibi", "relative", "sum") and not heads:
        kind = "array"
    if kind == "none":
        return lambda tensor: None, None, lambda array: 0.0
    if kind == "alibi":
        return (
            lambda tensor: biases.alibi(heads),
            None,
            lambda array: reference.alibi(heads, queries, keys),
        )
    if kind == "relative":
        one_sided = choose([True, False])
        table = rng.normal(size=(6, heads))
        return (
            lambda tensor: biases.relative(tensor, bidirectional=not one_sided, max_distance=8),
            table,
            lambda array: reference.relative(array, queries, keys, 8, not one_sided),
        )
    shapes = [(queries, keys), (1, keys), (sizes.batch, queries, keys), (1, queries, 1)]
    if heads:
        shapes += [(sizes.batch, heads, queries, keys), (1, heads, 1, keys), (1, 1, 1, 1)]
    array = rng.normal(size=choose(shapes))

    def spread(array):
        return array[:, None] if heads and array.ndim == 3 else array

    if kind == "sum":
        return (
            lambda tensor: biases.alibi(heads) + tensor,
            array,
            lambda array: reference.alibi(heads, queries, keys) + spread(array),
        )
    return choose([lambda tensor: tensor, biases.explicit]), array, spread


class Problem(NamedTuple):
    """A call of `attend`."""

    sizes: Sizes
    arrays: list  # query, key, value, parameters of the score, and the array of the bias
    seen: Any
    options: dict  # of `attend`
    bias: Callable  # of the last tensor to the argument `bias` of `attend`
    bias_array: Callable  # of the last array to the bias
    has_tensor: bool
    score: Callable
    score_gradient: Callable | None
    normalizer: tuple
    dtype: str
    block: tuple


def problem_of(choose: Choose) -> Problem:
    rng, sizes = np.random.default_rng(choose(SEEDS)), sizes_of(choose)
    dtype = choose(["float32", "float64", "float16", "bfloat16"])
    if BACKEND != "tensorflow" and dtype == "float64":  # Keras has float64 on TensorFlow only
        dtype = "float32"
    function, parameters, score, gradient = score_of(choose, sizes, rng)
    mask, seen = mask_of(choose, sizes, rng)
    bias, tensor, bias_array = bias_of(choose, sizes, rng, dtype)
    path = choose(["streamed", "dense"])
    path = path if BACKEND == "tensorflow" else "dense"
    normalizer, wants = ("softmax",), choose(["nothing", "weights", "sums", "both"])
    if path == "dense":
        normalizer = choose([("softmax",), ("sparsemax",), ("top k", 2)])
    if path == "streamed" and wants in ("weights", "both"):
        wants = "sums"
    if normalizer != ("softmax",) and wants in ("sums", "both"):
        wants = "weights"
    heads, groups = ((sizes.heads,), (sizes.groups,)) if sizes.heads else ((), ())
    spread = 0.5 if score is not reference.log_kernel else 1.0
    arrays = [
        spread * rng.normal(size=(sizes.batch, *heads, sizes.queries, sizes.width)),
        spread * rng.normal(size=(sizes.batch, *groups, sizes.keys, sizes.width)),
        rng.normal(size=(sizes.batch, *groups, sizes.keys, sizes.value_width)),
        *parameters,
    ]
    arrays += [] if tensor is None else [tensor]
    # Inputs rounded to the dtype, as float64: their rounding is no error.
    arrays = [numpy(as_tensor(x, dtype)).astype("float64") for x in arrays]
    while gradient is None and at_an_edge(*arrays[:2], sizes, dtype):
        arrays[0] = numpy(as_tensor(1.03 * arrays[0], dtype)).astype("float64")
    made = {"softmax": None, "sparsemax": normalizers.sparsemax, "top k": normalizers.top_k(2)}
    options = {
        "score": function,
        "mask": mask,
        "path": path,
        "normalizer": made[normalizer[0]],
        "return_weights": wants in ("weights", "both"),
        "return_log_sum_exp": wants in ("sums", "both"),
    }
    block = choose([(2, 3), (1, 1), (4, 2), (64, 64)])
    return Problem(
        sizes,
        arrays,
        seen,
        options,
        bias,
        bias_array,
        tensor is not None,
        score,
        gradient,
        normalizer,
        dtype,
        block,
    )


def at_an_edge(query: np.ndarray, key: np.ndarray, sizes: Sizes, dtype: str) -> bool:
    """Whether rounding decides that some query sees a key, at distance 1 of a triangular kernel."""
    if sizes.heads:
        key = np.repeat(key, sizes.heads // sizes.groups, axis=1)
    apart = np.linalg.norm(query[..., :, None, :] - key[..., None, :, :], axis=-1)
    rounding = {"float16": 0.002, "bfloat16": 0.016}.get(dtype, 1e-5)
    return bool((np.abs(apart - 1) < rounding).any())


def expected(problem: Problem, upstream: np.ndarray):
    """(output, weights, sums, gradients of Σ upstream · output, None where there are none)."""
    sizes, arrays = problem.sizes, problem.arrays
    query, key, value = arrays[:3]
    parameters = arrays[3 : len(arrays) - problem.has_tensor]
    tensor = arrays[-1] if problem.has_tensor else None
    groups = sizes.heads // sizes.groups if sizes.heads else 1
    if sizes.heads:
        key, value = (np.repeat(x, groups, axis=1) for x in (key, value))
    bias = np.broadcast_to(problem.bias_array(tensor), sizes.scores)
    scores = problem.score(query, key, *parameters) + bias
    seen = np.ones(sizes.scores, bool)
    if problem.seen is not None:
        seen = np.broadcast_to(problem.seen, sizes.scores)
    name, *rest = problem.normalizer
    if name == "softmax":
        weights = reference.softmax(scores, seen)
    elif name == "sparsemax":
        weights = reference.sparsemax(scores, seen)
    else:
        weights = reference.top_k(scores, *rest, seen)
    output, sums = reference.pool(weights, value), reference.log_sum_exp(scores, seen)
    if problem.score_gradient is None:
        return output, weights, sums, None
    of_value = np.einsum("...ts,...tv->...sv", weights, upstream)
    of_weights = np.einsum("...tv,...sv->...ts", upstream, value)
    if name == "sparsemax":
        support = weights > 0
        count = np.maximum(support.sum(-1, keepdims=True), 1)
        mean = np.where(support, of_weights, 0).sum(-1, keepdims=True) / count
        of_scores = np.where(support, of_weights - mean, 0.0)
    else:
        of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True))
    of_query, of_key, *others = problem.score_gradient(query, key, *parameters, of_scores)
    if sizes.heads:
        of_key, of_value = (
            x.reshape(sizes.batch, sizes.groups, groups, *x.shape[2:]).sum(2)
            for x in (of_key, of_value)
        )
    gradients = [of_query, of_key, of_value, *others]
    if problem.has_tensor:
        gradients.append(of_bias(problem, tensor, of_scores))
    return output, weights, sums, gradients


def of_bias(problem, tensor, of_scores):
    """The bias is linear in its tensor: one entry at a time."""
    zero = problem.bias_array(0 * tensor)
    gradient = np.zeros(tensor.shape)
    for at in np.ndindex(tensor.shape):
        one = np.zeros(tensor.shape)
        one[at] = 1.0
        gradient[at] = (
            np.broadcast_to(problem.bias_array(one) - zero, of_scores.shape) * of_scores
        ).sum()
    return gradient


def found(problem: Problem, upstream: np.ndarray):
    """The same four results by `attend`."""
    wants = (problem.options["return_weights"], problem.options["return_log_sum_exp"])

    def run(query, key, value, *others):
        results = tfattn.attend(
            query=query,
            value=value,
            key=key,
            parameters=others[: len(others) - problem.has_tensor],
            bias=problem.bias(others[-1] if problem.has_tensor else None),
            **problem.options,
        )
        return (results[0], results[1:]) if any(wants) else (results, ())

    tensors = [as_tensor(x, problem.dtype) for x in problem.arrays]
    with blocks_of(problem.block):
        (output, others), gradients = both_ways(run, tensors, upstream, has_aux=True)
    others = list(others)
    gradients = [
        ops.zeros_like(x) if gradient is None else gradient
        for x, gradient in zip(tensors, gradients, strict=True)
    ]
    if problem.score_gradient is None:
        gradients = None
    weights = others.pop(0) if wants[0] else None
    return output, weights, others.pop() if wants[1] else None, gradients


def poisoned(problem: Problem, choose: Choose) -> Problem:
    """The problem with NaN in keys and values that no query of a row and its heads may see."""
    if problem.seen is None or not choose([False, True]):
        return problem
    seen = np.broadcast_to(problem.seen, problem.sizes.scores).any(axis=-2)
    if problem.sizes.heads:
        seen = seen.any(axis=1)
    # Where the mask has no cheap hook for hidden tokens, the guard tests each query.
    arrays = list(problem.arrays)
    for place in (1, 2):
        hidden = ~(seen[:, None] if problem.sizes.heads else seen)
        arrays[place] = np.where(hidden[..., None], np.nan, arrays[place])
    return problem._replace(arrays=arrays)


def check_attend(choose: Choose) -> None:
    """Checks one case; an AssertionError shows the difference."""
    problem = problem_of(choose)
    shape = (*problem.sizes.scores[:-1], problem.sizes.value_width)
    upstream = np.random.default_rng(1).normal(size=shape)
    upstream = numpy(as_tensor(upstream, problem.dtype)).astype("float64")
    wanted = expected(problem, upstream)
    poison = poisoned(problem, choose)
    hidden = poison is not problem
    here = found(poison, upstream)
    tolerance = TOLERANCES[problem.dtype]
    for name, this, that in zip(("output", "weights", "sums"), here, wanted, strict=False):
        if this is not None:
            assert this.shape == that.shape, f"{name} has shape {this.shape}, not {that.shape}"
            assert_close(name, this, that, tolerance)
    if here[3] is not None and problem.dtype in ("float32", "float64"):
        names = ["query", "key", "value", *[f"parameter {i}" for i in range(9)]]
        for name, this, that in zip(names, here[3], wanted[3], strict=False):
            assert this.shape == that.shape, f"gradient of {name} has shape {this.shape}"
            assert_close(f"gradient of {name}, hidden {hidden}", this, that, tolerance)


def check_layer(choose: Choose) -> None:
    """`MultiHeadAttention` with positions, masks by several names and a bias."""
    rng = np.random.default_rng(choose(SEEDS))
    sizes = sizes_of(choose)._replace(heads=choose([2, 1, 4]))
    heads, queries, keys = sizes.heads, sizes.queries, sizes.keys
    key_dim, groups = choose([2, 4]), choose([1, heads])
    sizes = sizes._replace(groups=groups)
    query = rng.normal(size=(sizes.batch, queries, 3)).astype("float32")
    value = rng.normal(size=(sizes.batch, keys, 5)).astype("float32")
    interleaved, one_sided = choose([False, True]), choose([False, True])
    positions, turn, bias = None, lambda x, start: x, 0.0
    kind = choose(["none", "rotary", "alibi", "relative"])
    if kind == "rotary":
        positions = tfattn.RotaryPositions(100.0, rotary_dim=2, interleaved=interleaved)
        speeds = reference.frequencies(2, 100.0)
        turn = lambda x, start: reference.turned(x, start, speeds, interleaved)  # noqa: E731
    elif kind == "alibi":
        positions, bias = tfattn.AlibiPositions(), reference.alibi(heads, queries, keys)
    elif kind == "relative":
        positions = tfattn.RelativePositionBias(6, 8, not one_sided, "random_normal")
    layer = tfattn.MultiHeadAttention(
        heads, key_dim, value_dim=2, num_key_value_heads=groups, positions=positions
    )
    layer.build(query.shape, value.shape)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    if kind == "relative":
        table = np.asarray(positions.table, "float64")
        bias = reference.relative(table, queries, keys, 8, not one_sided)
    mask, seen = mask_of(choose, sizes, rng)
    seen = np.ones(sizes.scores, bool) if seen is None else np.broadcast_to(seen, sizes.scores)
    arguments = {"query": query, "value": value, "attention_mask": mask}
    if choose([False, True]):
        arguments["use_causal_mask"] = True
        seen = seen & reference.causal(queries, keys)
    if choose([False, True]):
        arguments["valid_lens"] = lengths = rng.integers(0, keys + 2, sizes.batch)
        seen = seen & reference.padding(lengths, keys)[:, None]
    if choose([False, True]):
        arguments["key_mask"] = real = rng.random((sizes.batch, keys)) < 0.7
        seen = seen & real[:, None, None]
    if choose([False, True]):
        arguments["bias"] = added = rng.normal(size=(queries, keys)).astype("float32")
        bias = bias + added
    maps = (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense)
    weights = [np.asarray(x) for one in maps for x in (one.kernel, one.bias)]
    start = keys - queries

    def score(q, k):
        return reference.dot_product(turn(q, start), turn(k, 0)) + bias

    wanted, attended = reference.multi_head(query, value, value, weights, seen, score)
    if choose([True, False]) and BACKEND == "tensorflow":
        with paths.streamed(choose([(2, 3), (1, 1), (64, 64)])):
            assert_close("output, streamed", layer(**arguments), wanted, 2e-4)
    else:
        output, given = layer(**arguments, return_attention_scores=True)
        assert_close("output", output, wanted, 2e-4)
        assert_close("weights", given, attended, 2e-4)


def assert_close(name: str, this: Any, that: np.ndarray, tolerance: float) -> None:
    this = np.asarray(numpy(as_tensor(this)), "float64")
    np.testing.assert_allclose(this, that, tolerance, tolerance, err_msg=name)
