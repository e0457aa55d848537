"""Random cases and what the oracle says of them, for property tests and for `fuzz.py`.

A case is made by `choose`, a function from a sequence to one of its members; all its arrays come of
one seed that is chosen too. So whoever chooses the same has the same case, and the command in the
error of `check_cases` repeats one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

import tfattn
from tests import reference
from tests.helpers import paths
from tests.helpers.paths import blocks_of
from tests.helpers.tensors import BACKEND, as_tensor, both_ways, numpy
from tfattn import biases, masks, normalizers
from tfattn.core import kernels, objects
from tfattn.core import scores as score_functions
from tfattn.core.masks import ranges

Choose = Callable[[Sequence], Any]

SEEDS = range(2**16)
# Relative and absolute tolerances against float64, by dtype.
TOLERANCES = {"float64": 1e-6, "float32": 5e-4, "float16": 4e-2, "bfloat16": 2e-1}


def chooser(seed: int, case: int, log: list | None = None) -> Choose:
    """Chooses each time by itself; `log` gets what it chooses."""
    rng = np.random.default_rng([seed, case])

    def choose(options):
        chosen = options[int(rng.integers(len(options)))]
        if log is not None:
            log.append(chosen)
        return chosen

    return choose


def check_cases(name: str, cases: Iterable[int], seed: int = 0) -> None:
    """Runs a check of `CHECKS` on cases by number; the error names the first that fails."""
    for case in cases:
        try:
            CHECKS[name](chooser(seed, case))
        except Exception as error:
            command = f"python tests/fuzz.py --check {name} --seed {seed} --only {case}"
            raise AssertionError(f"{command}\n{type(error).__name__}: {error}") from error


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
    square = (queries, keys)

    def lengths(*shape):
        return rng.integers(0, keys + 2, shape)

    def array(*shape):
        return rng.random(shape) < choose([0.5, 0.1, 0.9])

    def of_lengths(mask, chosen):
        return mask(chosen), reference.padding(chosen, keys)

    def segments(arrange):
        ids = [arrange(rng.integers(0, 3, (rows, length))) for length in square]
        return masks.segments(*ids), reference.segments(*ids)

    def explicit(*shape):
        mask = array(*shape)
        return choose([masks.explicit, lambda mask: mask])(mask), mask

    kinds = {
        "causal": lambda: (masks.causal(), reference.causal(*square)),
        "window": lambda: (masks.window(number), reference.window(number, *square)),
        "chunks": lambda: (masks.chunks(number), reference.chunks(number, *square)),
        "prefix": lambda: (masks.prefix(number), np.arange(keys)[None] < number),
        "prefixes": lambda: of_lengths(masks.prefix, lengths(rows)),
        "padding": lambda: of_lengths(masks.padding, np.minimum(lengths(rows), keys)),
        "padding by query": lambda: of_lengths(
            masks.padding, np.minimum(lengths(rows, queries), keys)
        ),
        "segments": lambda: segments(lambda ids: ids),
        "segments in order": lambda: segments(lambda ids: np.sort(ids, axis=1)),
        "square": lambda: explicit(*square),
        "full": lambda: explicit(rows, *square),
        "keys": lambda: explicit(rows, 1, keys),
        "array": lambda: explicit(choose([queries, 1]), choose([keys, 1])),
    }
    if sizes.heads:
        kinds["by head"] = lambda: explicit(rows, choose([sizes.heads, 1]), *square)
    mask, seen = kinds[choose([*kinds])]()
    return mask, by_head(seen, sizes)


def mask_of(choose: Choose, sizes: Sizes, rng) -> tuple[Any, np.ndarray | None]:
    """A mask or None, and its visible pairs."""
    count = choose([1, 0, 2, 3])
    if not count:
        return None, None
    mask, seen = leaf_of(choose, sizes, rng)
    for _ in range(count - 1):
        other, other_seen = leaf_of(choose, sizes, rng)
        if not isinstance(other, masks.Mask):  # an array joins a mask from either side
            mask = masks.all_of(mask)
        join = choose(["and", "or", "and not", "not"])
        if join == "and":
            mask, seen = mask & other, seen & other_seen
        elif join == "or":
            mask, seen = mask | other, seen | other_seen
        elif join == "and not":
            mask, seen = mask & ~masks.all_of(other), seen & ~other_seen
        else:
            mask, seen = ~masks.all_of(mask), ~seen
    return mask, seen


def check_mask(choose: Choose) -> None:
    """A mask, alone or joined: whole, saved, as tensors, in a rectangle, and by its hooks."""
    rng, sizes = np.random.default_rng(choose(SEEDS)), sizes_of(choose)
    mask, seen = mask_of(choose, sizes, rng)
    if mask is None:
        return
    mask = masks.all_of(mask)
    batch, queries, keys = sizes.batch, sizes.queries, sizes.keys
    seen = np.broadcast_to(seen, sizes.scores)

    def spread(tensor, queries=queries, keys=keys):
        array = numpy(as_tensor(tensor))
        array = array[:, None] if sizes.heads and array.ndim == 3 else array
        return np.broadcast_to(array, (*sizes.scores[:-2], queries, keys))

    tensors, structure = objects.flatten(mask)
    copies = [mask, objects.unflatten(structure, tensors)]
    if 0 not in sizes.scores:  # a list of no lists has no shape
        config = keras.saving.serialize_keras_object(mask)
        copies.append(keras.saving.deserialize_keras_object(config))
    for copy in copies:
        np.testing.assert_array_equal(spread(copy.dense(queries, keys)), seen)
    if not queries or not keys:
        return
    # A rectangle may begin anywhere and reach beyond the matrix.
    (t, s), sides = (choose(range(queries)), choose(range(keys))), [choose(range(1, 9)), 3]
    begin = choose([(t, s), tuple(as_tensor(at, "int32") for at in (t, s))])
    block = spread(mask.on(masks.Grid(queries, keys, *begin, *sides)), *sides)
    inside = seen[..., t : t + sides[0], s : s + sides[1]]
    np.testing.assert_array_equal(block[..., : inside.shape[-2], : inside.shape[-1]], inside)
    if batch:
        check_hooks(mask, seen, t, choose(range(1, queries - t + 1)))


def check_hooks(mask: Any, seen: np.ndarray, start: int, queries: int) -> None:
    """The hooks of a mask with these visible pairs `(..., T, S)`, on some of its queries."""
    (batch, *_, num_queries, num_keys), here = seen.shape, seen[..., start : start + queries, :]
    grid = masks.Grid(num_queries, num_keys, start, 0, queries, num_keys)
    bounds = ranges.Bounds.of(mask, grid)
    some = np.any([covered(seen, num_keys) for seen in bounds.seen], axis=0)
    assert not here[..., ~some].any() and not some[~covered(bounds.hull, num_keys)].any()
    assert here[..., covered(bounds.full, num_keys)].all()
    assert here.any(axis=-2).sum(-1).max() <= bounds.most(num_keys) <= num_keys
    axes = tuple(range(1, seen.ndim - 1))  # the queries of a row and its heads
    some = mask.seen_keys(masks.Grid.whole(num_queries, num_keys))
    some = np.ones((1, 1), bool) if some is None else numpy(some)
    np.testing.assert_array_equal(np.broadcast_to(some, (batch, num_keys)), seen.any(axis=axes))
    own = np.diagonal(seen, num_keys - num_queries, -2, -1)
    assert own.all() or not mask._sees_itself
    assert not mask._ignores_queries or (seen == seen[..., :1, :]).all()
    if mask.is_relative:
        beyond = masks.Grid(num_queries, num_keys, 0, 0, num_queries + 3, num_keys + 3)
        beyond = numpy(mask.on(beyond))
        np.testing.assert_array_equal(beyond[1:, 1:], beyond[:-1, :-1])


def covered(bounds: Any, num_keys: int) -> np.ndarray:
    """Which keys are in a range."""
    low, high = (int(end) for end in bounds)
    return (np.arange(num_keys) >= low) & (np.arange(num_keys) < high)


def score_of(choose: Choose, sizes: Sizes, rng):
    """(function, parameters, the oracle of query and key of equal heads, and the parameters)."""
    name = choose(["scaled", "dot", "additive", "gaussian", "triangular", "capped"])
    if name == "scaled":
        return score_functions.scaled_dot_product, [], reference.dot_product
    if name == "dot":
        return score_functions.dot_product, [], lambda q, k: reference.dot_product(q, k, 1.0)
    if name == "capped":
        cap = choose([1.5, 20.0])
        function = score_functions.soft_capped(score_functions.scaled_dot_product, cap)
        return function, [], lambda q, k: reference.soft_capped(reference.dot_product(q, k), cap)
    if name == "additive":
        weight = rng.normal(size=(sizes.width, 1))
        return score_functions.additive, [weight], lambda q, k, w: reference.additive(q, k, w[:, 0])
    function = score_functions.log_kernel(kernels.get(name))
    return function, [], lambda q, k: reference.log_kernel(q, k, kernel=name)


def bias_of(choose: Choose, sizes: Sizes, rng):
    """(what `attend` takes of tensors, the arrays of these, none or one, the bias of arrays)."""
    queries, keys, heads = sizes.queries, sizes.keys, sizes.heads
    kind = choose(["none", "array", "alibi", "relative", "alibi + array", "alibi + relative"])
    if kind == "none":
        return lambda: None, [], lambda: 0.0
    if kind == "array" or not heads:
        shapes = [(queries, keys), (1, keys), (sizes.batch, queries, keys), (1, queries, 1)]
        shapes += [(sizes.batch, heads, queries, keys), (1, heads, 1, keys)] * bool(heads)
        wrap = choose([lambda tensor: tensor, biases.explicit])
        return wrap, [rng.normal(size=choose(shapes))], lambda array: by_head(array, sizes)
    slopes = reference.alibi(heads, queries, keys)
    if kind == "alibi":
        return lambda: biases.alibi(heads), [], lambda: slopes
    if kind == "alibi + array":
        array = rng.normal(size=choose([(sizes.batch, queries, keys), (1, 1, 1, 1)]))
        added = lambda tensor: biases.alibi(heads) + tensor  # noqa: E731
        return added, [array], lambda array: slopes + by_head(array, sizes)
    two_sided, slopes = choose([True, False]), slopes if "alibi" in kind else 0.0

    def relative(table):
        bias = biases.relative(table, bidirectional=two_sided, max_distance=8)
        return biases.alibi(heads) + bias if "alibi" in kind else bias

    def oracle(table):
        return slopes + reference.relative(table, queries, keys, 8, two_sided)

    return relative, [rng.normal(size=(6, heads))], oracle


def by_head(array: np.ndarray, sizes: Sizes) -> np.ndarray:
    """An array `(B, T, S)` with an axis of heads, if the scores have one."""
    return array[:, None] if sizes.heads and array.ndim == 3 else array


NORMALIZERS = {
    "softmax": (None, reference.softmax),
    "sparsemax": (normalizers.sparsemax, reference.sparsemax),
    "top k": (normalizers.top_k(2), lambda scores, seen: reference.top_k(scores, 2, seen)),
}


def check_attend(choose: Choose) -> None:
    """A call of `attend`: its output, the weights and sums that it returns, and every gradient."""
    rng, sizes = np.random.default_rng(choose(SEEDS)), sizes_of(choose)
    dtype = choose(["float32", "float64", "float16", "bfloat16"])
    if BACKEND != "tensorflow" and dtype == "float64":  # Keras has float64 on TensorFlow only
        dtype = "float32"
    score, parameters, score_oracle = score_of(choose, sizes, rng)
    mask, seen = mask_of(choose, sizes, rng)
    bias, bias_arrays, bias_oracle = bias_of(choose, sizes, rng)
    path = choose(["streamed", "dense"]) if BACKEND == "tensorflow" else "dense"
    normalizer = choose([*NORMALIZERS]) if path == "dense" else "softmax"
    has_weights, has_sums = choose([False, True]), choose([False, True])
    has_weights, has_sums = has_weights and path == "dense", has_sums and normalizer == "softmax"
    shapes = [(sizes.heads, sizes.queries, sizes.width), (sizes.groups, sizes.keys, sizes.width)]
    shapes += [(sizes.groups, sizes.keys, sizes.value_width)]
    shapes = [(sizes.batch, *shape[not sizes.heads :]) for shape in shapes]
    arrays = [factor * rng.normal(size=x) for factor, x in zip((0.5, 0.5, 1), shapes, strict=True)]
    # Inputs rounded to the dtype, as float64: their rounding is no error.
    arrays = [rounded(x, dtype) for x in (*arrays, *parameters, *bias_arrays)]
    while is_at_an_edge(*arrays[:2], sizes, dtype):
        arrays[0] = rounded(1.03 * arrays[0], dtype)
    num_bias, visible = len(bias_arrays), True if seen is None else seen
    visible = np.broadcast_to(visible, sizes.scores)
    upstream = rounded(rng.normal(size=(*sizes.scores[:-1], sizes.value_width)), dtype)

    def oracle(query, key, value, *others):
        if sizes.heads:
            key, value = (np.repeat(x, sizes.heads // sizes.groups, axis=1) for x in (key, value))
        at = len(others) - num_bias
        added = np.broadcast_to(bias_oracle(*others[at:]), sizes.scores)
        scores = score_oracle(query, key, *others[:at]) + added
        weights = NORMALIZERS[normalizer][1](scores, visible)
        return reference.pool(weights, value), weights, reference.log_sum_exp(scores, visible)

    def run(query, key, value, *others):
        at = len(others) - num_bias
        results = tfattn.attend(
            query=query,
            value=value,
            key=key,
            score=score,
            parameters=others[:at],
            mask=mask,
            bias=bias(*others[at:]),
            normalizer=NORMALIZERS[normalizer][0],
            path=path,
            return_weights=has_weights,
            return_log_sum_exp=has_sums,
        )
        return (results[0], results[1:]) if has_weights or has_sums else (results, ())

    operands = list(arrays)
    if seen is not None and choose([False, True]):
        # Keys and values that no query of a row and its heads may see.
        broken = choose([np.nan, 6e4 if dtype == "float16" else 3e38])
        real = visible.any(axis=-2)
        real = real.any(axis=1, keepdims=True) if sizes.heads else real
        operands[1:3] = (np.where(real[..., None], x, broken) for x in arrays[1:3])
    with blocks_of(choose([(2, 3), (1, 1), (4, 2), (64, 64)])):
        tensors = [as_tensor(x, dtype) for x in operands]
        (output, others), gradients = both_ways(run, tensors, upstream, has_aux=True)
    wanted = zip(
        ("output", "weights", "sums"), oracle(*arrays), (True, has_weights, has_sums), strict=True
    )
    wanted = [(name, expected) for name, expected, is_returned in wanted if is_returned]
    for (name, expected), found in zip(wanted, (output, *others), strict=True):
        assert found.shape == expected.shape, f"{name} has shape {found.shape}"
        assert_close(name, found, expected, TOLERANCES[dtype])
    if dtype not in ("float32", "float64"):
        return
    for place, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
        gradient = np.zeros(array.shape) if gradient is None else numpy(gradient)
        assert gradient.shape == array.shape and np.isfinite(gradient).all()
        # Along two directions, by central differences.
        for direction in rng.normal(size=(2, *array.shape)):
            step = 1e-5 * direction
            ends = [[*arrays[:place], array + by, *arrays[place + 1 :]] for by in (step, -step)]
            above, below = ((oracle(*end)[0] * upstream).sum() for end in ends)
            slope, along = (above - below) / 2e-5, (gradient * direction).sum()
            assert_close(f"gradient of input {place}", along, slope, TOLERANCES[dtype])


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    return numpy(as_tensor(array, dtype)).astype("float64")


def is_at_an_edge(query: np.ndarray, key: np.ndarray, sizes: Sizes, dtype: str) -> bool:
    """Whether rounding decides that some query sees a key, at distance 1 of a triangular kernel."""
    if sizes.heads:
        key = np.repeat(key, sizes.heads // sizes.groups, axis=1)
    apart = np.linalg.norm(query[..., :, None, :] - key[..., None, :, :], axis=-1)
    rounding = {"float16": 0.002, "bfloat16": 0.016}.get(dtype, 1e-3)
    return bool((np.abs(apart - 1) < rounding).any())


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
    arguments, flags = {"query": query, "value": value, "attention_mask": mask}, [False, True]
    if choose(flags):
        arguments["use_causal_mask"] = True
        seen = seen & reference.causal(queries, keys)
    if choose(flags):
        arguments["valid_lens"] = lengths = np.minimum(rng.integers(0, keys + 2, sizes.batch), keys)
        seen = seen & reference.padding(lengths, keys)[:, None]
    if choose(flags):
        arguments["key_mask"] = real = rng.random((sizes.batch, keys)) < 0.7
        seen = seen & real[:, None, None]
    if choose(flags):
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


CHECKS = {"attend": check_attend, "layer": check_layer, "mask": check_mask}
