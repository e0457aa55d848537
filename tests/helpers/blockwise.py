"""Problems for both paths, their outputs and gradients, and covering designs of cases."""

import itertools
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from tests.helpers import tensors
from tests.helpers.paths import blocks_of
from tests.helpers.tensors import BACKEND, as_tensor, numpy, tf
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


class Case(NamedTuple):
    """A kind of mask, and its arrays, which may be inputs of a graph."""

    rule: object  # a function of the arrays
    arrays: object = lambda rng: ()


MASKS = {
    "none": Case(lambda: None),
    "causal": Case(masks.causal),
    "window": Case(lambda: masks.window(3)),
    "causal & window": Case(lambda: masks.causal() & masks.window(4)),
    "padding": Case(masks.padding, lambda rng: [rng.integers(0, S + 1, B)]),
    "padding by query": Case(masks.padding, lambda rng: [rng.integers(0, S + 1, (B, T))]),
    "prefix | causal": Case(
        lambda length: masks.prefix(length) | masks.causal(), lambda rng: [rng.integers(0, 9, B)]
    ),
    "prefix of one number": Case(masks.prefix, lambda rng: [np.int64(rng.integers(0, 9))]),
    "~window": Case(lambda: ~masks.window(5)),
    "~causal": Case(lambda: ~masks.causal()),
    "~(padding & window)": Case(
        lambda lengths: ~(masks.padding(lengths) & masks.window(6)),
        lambda rng: [rng.integers(0, S + 1, B)],
    ),
    "segments": Case(
        masks.segments, lambda rng: [rng.integers(0, 3, (B, T)), rng.integers(0, 3, (B, S))]
    ),
    "segments in order": Case(
        masks.segments,
        lambda rng: [np.sort(rng.integers(0, 4, (B, n)), axis=1) for n in (T, S)],
    ),
    "strided": Case(lambda: masks.strided(3)),
    "dilated window": Case(lambda: masks.window(6) & masks.strided(2)),
    "chunks": Case(lambda: masks.causal() & masks.chunks(4)),
    "chunk ends": Case(lambda: masks.chunks(5) | masks.chunk_ends(5, 2)),
    "blocks": Case(lambda plan: masks.blocks(plan, 2), lambda rng: [rng.random((7, 9)) < 0.3]),
    "blocks by head": Case(
        lambda plan: masks.causal() & masks.blocks(plan, 3),
        lambda rng: [rng.random((B, H, 5, 6)) < 0.3],
    ),
    "by head": Case(
        lambda lengths, plan: masks.per_head(
            [masks.window(3), masks.padding(lengths), masks.blocks(plan, 2)], heads=[1, 2, 1]
        ),
        lambda rng: [rng.integers(0, S + 1, B), rng.random((7, 9)) < 0.3],
    ),
    "explicit": Case(masks.explicit, lambda rng: [rng.random((T, S)) < 0.5]),
    "explicit by row": Case(masks.explicit, lambda rng: [rng.random((B, T, S)) < 0.5]),
    "explicit by head": Case(masks.explicit, lambda rng: [rng.random((B, H, T, S)) < 0.5]),
    "explicit keys": Case(masks.explicit, lambda rng: [rng.random((B, 1, S)) < 0.5]),
    "keys in the middle": Case(
        masks.explicit,
        lambda rng: [(np.arange(S) > 5) & (np.arange(S) < rng.integers(4, S, (B, 1, 1)))],
    ),
    "~padded keys": Case(
        lambda seen: ~masks.explicit(seen),
        lambda rng: [np.arange(S) < rng.integers(0, S + 1, (B, 1, 1, 1))],
    ),
    "all keys or none": Case(masks.explicit, lambda rng: [rng.random((B, 1, 1)) < 0.5]),
    "nothing": Case(lambda: masks.prefix(0)),
}
BIASES = {
    "none": None,
    "square": (T, S),
    "full": (B, H, T, S),
    "by head and key": (1, H, 1, S),
    "by query": (B, 1, T, 1),
}


def call_of(query, value, key=None, **fields):
    """The call that `attend` would build from tensors, a score and mask and bias objects."""
    return AttentionCall(query=query, value=value, key=value if key is None else key, **fields)


def cover(**factors):
    """Few rows with one value per factor, such that any two values of two factors share a row.

    The rows are built greedily: each row begins with the first uncovered pair, and each other
    factor takes the value that covers most pairs with the row.
    """
    pairs_of = [
        itertools.product([(a, x) for x in factors[a]], [(b, y) for y in factors[b]])
        for a, b in itertools.combinations(factors, 2)
    ]
    left = dict.fromkeys(frozenset(pair) for pairs in pairs_of for pair in pairs)
    rows = []
    while left:
        row = dict(next(iter(left)))
        for name in factors:
            if name not in row:
                met = [
                    sum(frozenset(((name, x), other)) in left for other in row.items())
                    for x in factors[name]
                ]
                row[name] = factors[name][met.index(max(met))]
        for pair in itertools.combinations(row.items(), 2):
            left.pop(frozenset(pair), None)
        rows.append({name: row[name] for name in factors})
    return rows


def mask_of(name, seed):
    """A mask of this kind, with NumPy arrays."""
    case = MASKS[name]
    return case.rule(*case.arrays(np.random.default_rng(seed)))


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
    seed, score="scaled dot", heads=(H, H), bias="none", dtype="float32", width=D, at_edges=False
):
    """(score function, arguments): query, key, value, parameters and bias as one list of tensors.

    `at_edges` allows pairs arbitrarily near to the edge of a kernel's support.
    """
    rng = np.random.default_rng(seed)
    function, parameters = scored(score, width, heads[0], rng)
    scale = 0.3 if score == "epanechnikov" else 1.0  # so that some keys lie within its support
    arrays = [
        scale * rng.normal(size=(B, heads[0], T, width)),
        scale * rng.normal(size=(B, heads[1], S, width)),
    ]
    if score == "epanechnikov" and not at_edges:
        # On a grid no pair is nearer to the edge of the support than 1 − u² = 1/64. Nearer, the
        # slope 2u / (1 − u²) is unbounded, and multiplies the rounding error of a difference.
        arrays = [np.round(8 * array) / 8 for array in arrays]
    arrays += [rng.normal(size=(B, heads[1], S, V)), *parameters]
    if BIASES[bias]:
        arrays.append(rng.normal(size=BIASES[bias]))
    return function, [as_tensor(x, dtype) for x in arrays]


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


def second(function, arguments, mask=None, path="streamed", block=(7, 9)):
    """Second derivatives: gradients of the sum of squares of all gradients."""

    def total(*arguments):
        def output(query, key, value, *parameters):
            return (
                attend(
                    query,
                    value,
                    key=key,
                    score=function,
                    parameters=parameters,
                    mask=mask,
                    path=path,
                )
                ** 3
            )

        with blocks_of(block):
            _, gradients = tensors.both_ways(output, arguments)
        return sum(ops.sum(gradient**2) for gradient in gradients)

    total = tensors.compiled(total) if BACKEND == "jax" else total
    return connected(tensors.both_ways(total, arguments)[1], arguments)


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

    def key_bounds(self, grid):
        return 0, grid.last_position() - self.by + 1

    def full_bounds(self, grid):
        return 0, grid.first_position() - self.by + 1


class OfTheSquare(masks.Mask):
    """A window whose `full_bounds` use the queries within the matrix only."""

    is_relative = True

    def on(self, grid):
        return abs(grid.key_positions() - grid.query_positions()) < 5

    def key_bounds(self, grid):
        return grid.first_position() - 4, grid.last_position() + 5

    def full_bounds(self, grid):
        return min(grid.last_position(), grid.num_keys - 1) - 4, grid.first_position() + 5


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
