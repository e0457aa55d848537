"""Calls of `attend` that both paths must answer alike, their outputs, gradients and oracle."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tests import reference
from tests.helpers import tensors
from tests.helpers.paths import blocks_of
from tests.helpers.tensors import BACKEND, as_tensor, dtype_of, numpy, tf
from tfattn import attend, masks
from tfattn.core import kernels
from tfattn.core import scores as score_functions
from tfattn.core.call import AttentionCall

B, H, T, S, D, V = 2, 4, 13, 17, 5, 3

UPSTREAM = np.random.default_rng(5).normal(size=(B, H, T, V))
OF_SUMS = np.random.default_rng(6).normal(size=(B, H, T))  # of the log of the sums
# At least one per block form: products, the compiled additive score, and custom scores, which may
# be −∞ and may have parameters.
SCORES = [
    "scaled dot",
    "dot",
    "additive",
    "additive by head",
    "epanechnikov",
    "capped scaled dot",
    "capped additive",
]
# Of outputs, by dtype, relative and absolute: all is computed in float32 or wider.
TOLERANCES = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 2e-5, "float64": 1e-12}


class MaskKind(NamedTuple):
    """A kind of mask: a function of arrays, which may be inputs of a graph, and the arrays."""

    rule: Callable
    draw: Callable = lambda rng, b, h, t, s: ()

    def arrays(self, rng, sizes=(B, H, T, S)):
        return self.draw(rng, *sizes)


def _lengths(rng, b, h, t, s):
    return [rng.integers(0, s + 1, b)]


MASKS = {
    "none": MaskKind(lambda: None),
    "causal": MaskKind(masks.causal),
    "window": MaskKind(lambda: masks.window(3)),
    "causal & window": MaskKind(lambda: masks.causal() & masks.window(4)),
    "padding": MaskKind(masks.padding, _lengths),
    "padding by query": MaskKind(
        masks.padding, lambda rng, b, h, t, s: [rng.integers(0, s + 1, (b, t))]
    ),
    "prefix | causal": MaskKind(
        lambda length: masks.prefix(length) | masks.causal(),
        lambda rng, b, h, t, s: [rng.integers(0, 9, b)],
    ),
    "prefix of one number": MaskKind(masks.prefix, lambda rng, *_: [np.int64(rng.integers(0, 9))]),
    "~window": MaskKind(lambda: ~masks.window(5)),
    "~causal": MaskKind(lambda: ~masks.causal()),
    "~(padding & window)": MaskKind(
        lambda lengths: ~(masks.padding(lengths) & masks.window(6)), _lengths
    ),
    "segments": MaskKind(
        masks.segments, lambda rng, b, h, *n: [rng.integers(0, 3, (b, length)) for length in n]
    ),
    "segments in order": MaskKind(
        masks.segments,
        lambda rng, b, h, *n: [np.sort(rng.integers(0, 4, (b, length)), axis=1) for length in n],
    ),
    "chunks": MaskKind(lambda: masks.causal() & masks.chunks(4)),
    "window | prefix": MaskKind(lambda: masks.window(3) | masks.prefix(2)),
    "by head": MaskKind(
        lambda array: masks.window(3) | masks.explicit(array) & masks.chunks(2),
        lambda rng, b, h, t, s: [rng.random((1, h, t, s)) < 0.5],
    ),
    "explicit": MaskKind(masks.explicit, lambda rng, b, h, t, s: [rng.random((t, s)) < 0.5]),
    "explicit by row": MaskKind(
        masks.explicit, lambda rng, b, h, t, s: [rng.random((b, t, s)) < 0.5]
    ),
    "explicit by head": MaskKind(
        masks.explicit, lambda rng, b, h, t, s: [rng.random((b, h, t, s)) < 0.5]
    ),
    "explicit keys": MaskKind(
        masks.explicit, lambda rng, b, h, t, s: [rng.random((b, 1, s)) < 0.5]
    ),
    "keys in the middle": MaskKind(
        masks.explicit,
        lambda rng, b, h, t, s: [
            (np.arange(s) > 5) & (np.arange(s) < rng.integers(4, max(5, s), (b, 1, 1)))
        ],
    ),
    "~padded keys": MaskKind(
        lambda seen: ~masks.explicit(seen),
        lambda rng, b, h, t, s: [np.arange(s) < rng.integers(0, s + 1, (b, 1, 1, 1))],
    ),
    "all keys or none": MaskKind(
        masks.explicit, lambda rng, b, h, t, s: [rng.random((b, 1, 1)) < 0.5]
    ),
    "nothing": MaskKind(lambda: masks.prefix(0)),
}
BIASES = {
    "none": None,
    "square": lambda b, h, t, s: (t, s),
    "full": lambda b, h, t, s: (b, h, t, s),
    "by head and key": lambda b, h, t, s: (1, h, 1, s),
    "by query": lambda b, h, t, s: (b, 1, t, 1),
}


def call_of(query, value, key=None, **fields):
    """The call that `attend` would build from tensors, a score and mask and bias objects."""
    return AttentionCall(query=query, value=value, key=value if key is None else key, **fields)


class Case(NamedTuple):
    """A call of `attend`, and the blocks in which it streams."""

    mask: Any = None  # an object, or the name of a kind
    score: str = "scaled dot"
    bias: str = "none"
    heads: tuple[int, int] = (1, 1)  # of queries, and of keys and values
    lengths: tuple[int, int] = (T, S)
    widths: tuple[int, int] = (D, V)  # of queries and keys, and of values
    batch: int = B
    dtypes: tuple[str, ...] = ("float32",) * 3  # of query, key and value
    block: tuple[int, int] | None = (7, 6)
    sums: bool = False  # whether the log of the sums is returned too
    axes: int = 4
    broken: float | None = None  # what hidden tokens hold
    reached: bool = False  # whether a token that queries may see holds it too
    path: str = "streamed"
    seed: int = 0


def mask_of(name, seed, sizes=(B, H, T, S)):
    """A mask of this kind, with NumPy arrays."""
    kind = MASKS[name]
    return kind.rule(*kind.arrays(np.random.default_rng(seed), sizes))


def cosine(query, key):
    """A custom score, undefined at zero."""
    key = ops.repeat(key, query.shape[1] // key.shape[1], axis=1)
    query, key = (x / ops.sqrt(ops.sum(x**2, -1, keepdims=True)) for x in (query, key))
    return ops.matmul(query, ops.swapaxes(key, -1, -2))


def scored(name, width, heads, rng):
    """(score function, its parameters)."""
    if name.startswith("capped "):
        function, parameters = scored(name.removeprefix("capped "), width, heads, rng)
        return score_functions.soft_capped(function, 0.8), parameters
    if name == "additive":
        return score_functions.additive, [rng.normal(size=(width, 1))]
    if name == "additive by head":
        return score_functions.additive, [rng.normal(size=(heads, width, 1))]
    if name == "cosine":
        return cosine, []
    if name in ("gaussian", "epanechnikov"):
        return score_functions.log_kernel(kernels.get(name)), []
    return {"dot": score_functions.dot_product, "scaled dot": score_functions.scaled_dot_product}[
        name
    ], []


def problem(
    seed,
    score="scaled dot",
    heads=(H, H),
    bias="none",
    dtype="float32",
    at_edges=False,
    batch=B,
    lengths=(T, S),
    widths=(D, V),
):
    """(score function, arguments): query, key, value, parameters and bias as one list of tensors.

    `at_edges` allows pairs arbitrarily near to the edge of a kernel's support.
    """
    rng = np.random.default_rng(seed)
    (queries, keys), (width, value_width) = lengths, widths
    function, parameters = scored(score, width, heads[0], rng)
    scale = 0.3 if score == "epanechnikov" else 1.0  # so that some keys lie within its support
    arrays = [
        scale * rng.normal(size=(batch, heads[0], queries, width)),
        scale * rng.normal(size=(batch, heads[1], keys, width)),
    ]
    if score == "epanechnikov" and not at_edges:
        # On a grid no pair is nearer to the edge of the support than 1 − u² = 1/64. Nearer, the
        # slope 2u / (1 − u²) is unbounded, and multiplies the rounding error of a difference.
        arrays = [np.round(8 * array) / 8 for array in arrays]
    arrays += [rng.normal(size=(batch, heads[1], keys, value_width)), *parameters]
    if BIASES[bias]:
        arrays.append(rng.normal(size=BIASES[bias](batch, heads[0], queries, keys)))
    return function, [as_tensor(x, dtype) for x in arrays]


def check(case):
    """The streamed path equals the dense one in float64 in output, log of the sums and every
    gradient, and the oracle; what sees nothing and what no one sees has a gradient of exactly 0.
    """
    function, arguments = problem(
        case.seed,
        case.score,
        case.heads,
        case.bias,
        batch=case.batch,
        lengths=case.lengths,
        widths=case.widths,
    )
    sizes, mask = (case.batch, case.heads[0], *case.lengths), case.mask
    mask = mask_of(mask, case.seed, sizes) if isinstance(mask, str) else mask
    seen = np.ones(case.lengths, bool) if mask is None else numpy(mask.dense(*case.lengths))
    seen = np.broadcast_to(seen[:, None] if seen.ndim == 3 else seen, sizes)
    arguments[:3] = [ops.cast(x, y) for x, y in zip(arguments, case.dtypes, strict=False)]
    arrays = [numpy(x).astype("float64") for x in arguments]
    lost = np.zeros((case.batch, case.lengths[1]), bool)
    if case.broken is not None:
        lost = ~seen.any((1, 2))
        middle = case.lengths[1] // 2
        lost[-1:, middle : middle + 1] |= case.reached
        arguments[1:3] = [ops.where(lost[:, None, :, None], case.broken, x) for x in arguments[1:3]]
    arguments[:3] = [x[:, 0] if case.axes == 3 else x for x in arguments[:3]]
    rng = np.random.default_rng(case.seed)
    rows = (case.batch, *case.heads[: case.axes - 3], case.lengths[0])
    upstream = [rng.normal(size=(*rows, case.widths[1])), rng.normal(size=rows)]
    upstream[0] = numpy(as_tensor(upstream[0], case.dtypes[2]))  # as rounded as the output is
    upstream = tuple(upstream) if case.sums else upstream[0]
    options = {"biased": case.bias != "none", "upstream": upstream, "block": case.block}
    options |= {"return_log_sum_exp": True} if case.sums else {}
    here = both_ways(function, arguments, mask, case.path, **options)
    there = both_ways(function, wide(arguments), mask, "dense", **options)
    of_sums = keras.backend.result_type(*case.dtypes[:2], "float32")
    dtypes = [case.dtypes[2], *[of_sums] * case.sums, *map(dtype_of, arguments)]
    assert [dtype_of(x) for x in here] == dtypes
    assert [x.shape for x in here] == [x.shape for x in there]
    here = [numpy(x) for x in here]
    # What else a query that is NaN passes on, to keys, parameters and a bias, is not defined.
    reached = case.reached and case.broken is not None
    there = there[: 2 + case.sums] if reached else there
    for wanted in (there, oracle(case, arrays, seen, lost)):
        for this, that, dtype in zip(here, wanted, dtypes, strict=False):
            assert_close([this], [that], TOLERANCES[dtype])
    # Queries that see nothing and keys that no one sees have exactly zeros.
    output, of_query, of_key, of_value = (
        x[:, None] if case.axes == 3 else x for x in (here[0], *here[1 + case.sums :][:3])
    )
    heads, groups = case.heads
    by_group = (case.batch, groups, heads // groups, case.lengths[1])
    blind, unseen = ~seen.any(-1), ~seen.any(-2).reshape(by_group).any(2)
    assert not output[blind].any() and not of_query[blind].any()
    assert reached or not of_key[unseen].any() and not of_value[unseen].any()


def oracle(case, arrays, seen, lost):
    """Output, and the log of the sums where it is returned: NaN for who sees a token that is lost.

    Args:
        arrays: query, key, value, parameters and bias, all numbers.
        seen: the pairs that the mask lets in, `(B, H, T, S)`.
        lost: tokens `(B, S)`.
    """
    query, key, value, *parameters = arrays
    bias = parameters.pop() if case.bias != "none" else 0.0
    key, value = (np.repeat(x, case.heads[0] // case.heads[1], axis=1) for x in (key, value))
    scores = expected_scores(case.score, query, key, parameters) + bias
    found = [reference.attention(scores, value, seen)[0], reference.log_sum_exp(scores, seen)]
    for x in found:
        x[(seen & lost[:, None, None]).any(-1)] = np.nan
    return [x[:, 0] if case.axes == 3 else x for x in found[: 1 + case.sums]]


def expected_scores(name, query, key, parameters):
    if name.startswith("capped "):
        scores = expected_scores(name.removeprefix("capped "), query, key, parameters)
        return reference.soft_capped(scores, 0.8)
    if name.startswith("additive"):
        weights = np.broadcast_to(parameters[0], (query.shape[1], query.shape[-1], 1))
        heads = [reference.additive(query[:, h], key[:, h], w[:, 0]) for h, w in enumerate(weights)]
        return np.stack(heads, axis=1)
    if name == "cosine":
        return reference.cosine(query, key)
    if name in ("gaussian", "epanechnikov"):
        return reference.log_kernel(query, key, kernel=name)
    return reference.dot_product(query, key, 1.0 if name == "dot" else None)


def both_ways(
    function,
    arguments,
    mask=None,
    path="streamed",
    biased=False,
    block=(7, 6),
    upstream=None,
    **options,
):
    """Output, perhaps the log of the sums, and the gradient of each argument for `upstream`, or for
    a fixed upstream gradient.
    """
    if upstream is None:
        heads = slice(arguments[0].shape[1]) if len(arguments[0].shape) == 4 else 0
        upstream = [x[:, heads] for x in (UPSTREAM, OF_SUMS)]
        upstream = tuple(upstream) if options.get("return_log_sum_exp") else upstream[0]

    def run(query, key, value, *rest):
        bias = rest[-1] if biased else None
        parameters = rest[:-1] if biased else rest
        return attend(
            query,
            value,
            key=key,
            score=function,
            parameters=parameters,
            mask=mask,
            bias=bias,
            path=path,
            **options,
        )

    run = tensors.compiled(run) if BACKEND == "jax" else run
    with blocks_of(block):
        outputs, gradients = tensors.both_ways(run, arguments, upstream)
    return [*keras.tree.flatten(outputs), *connected(gradients, arguments)]


def connected(gradients, arguments):
    """Gradients, zeros where an argument reaches no output."""
    both = zip(gradients, arguments, strict=True)
    return [ops.zeros_like(x) if gradient is None else gradient for gradient, x in both]


def second(function, arguments, mask=None, path="streamed", block=(7, 9), sums=False):
    """Second derivatives: gradients of the sum of squares of all gradients."""

    def output(query, key, value, *parameters):
        options = {"parameters": parameters, "mask": mask, "return_log_sum_exp": sums}
        found = attend(query, value, key=key, score=function, path=path, **options)
        if not sums:
            return found**3
        return [found[0] ** 3, ops.sin(ops.where(ops.equal(found[1], -np.inf), 0.0, found[1]))]

    def total(*arguments):
        with blocks_of(block):
            _, gradients = tensors.both_ways(output, arguments)
        return sum_of(gradients)

    total = tensors.compiled(total) if BACKEND == "jax" else total
    return connected(tensors.both_ways(total, arguments)[1], arguments)


def sum_of(gradients):
    """The sum of squares."""
    return sum(ops.sum(gradient**2) for gradient in gradients)


def operands_of(shape, widths=(6, 5), dtype="float32", seed=1):
    """query, key, value and an upstream gradient of (rows, heads, key heads, queries, keys)."""
    rows, heads, groups, queries, keys = shape
    draw, (width, value_width) = np.random.default_rng(seed).normal, widths
    shapes = [
        (rows, heads, queries, width),
        (rows, groups, keys, width),
        (rows, groups, keys, value_width),
        (rows, heads, queries, value_width),
    ]
    return [as_tensor(draw(size=shape), dtype) for shape in shapes]


class Earlier(masks.Mask):
    """The first key to the key `by` positions before the query; after it where `by` < 0."""

    is_relative = True

    def __init__(self, by):
        self.by = by

    def on(self, grid):
        return grid.key_positions() <= grid.query_positions() - self.by

    def bounds(self, grid):
        return (0, grid.last_position() - self.by + 1), (0, grid.first_position() - self.by + 1)


class OfTheSquare(masks.Mask):
    """A window whose full range uses the queries within the matrix only."""

    is_relative = True

    def on(self, grid):
        return abs(grid.key_positions() - grid.query_positions()) < 5

    def bounds(self, grid):
        first, last = grid.first_position(), grid.last_position()
        return (first - 4, last + 5), (min(last, grid.num_keys - 1) - 4, first + 5)


def moved(query, key, by):
    """Queries and keys with one more feature, whose product shifts all scores of a query by `by`:
    the softmax does not change, its exponentials overflow or vanish.
    """
    by = tf.constant(by, query.dtype)[:, None] + 0 * query[..., :1]
    return [tf.concat([query, by], -1), tf.concat([key, 1 + 0 * key[..., :1]], -1)]


def assert_close(these, those, tolerance=2e-4):
    for this, that in zip(these, those, strict=True):
        this, that = (x if isinstance(x, np.ndarray) else numpy(as_tensor(x)) for x in (this, that))
        np.testing.assert_allclose(
            this.astype("float64"), that.astype("float64"), tolerance, tolerance
        )


def wide(arguments):
    return [ops.cast(x, "float64" if BACKEND == "tensorflow" else "float32") for x in arguments]
