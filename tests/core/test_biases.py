"""Bias objects against plain NumPy: whole, block by block, and by their gradients.

Attention with drawn biases, and their gradients, on both paths: `test_properties.py`.
"""

import keras
import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.helpers.blockwise import blocks_of
from tests.helpers.paths import PATHS
from tests.helpers.tensors import FLOAT64, as_tensor, both_ways, numpy, tf
from tfattn import attend, biases, masks
from tfattn.core import objects
from tfattn.core.scores import additive

B, H, T, S, D = 2, 3, 5, 7, 11

draw = np.random.default_rng(17).normal
ARRAYS = {
    shape: draw(size=shape).astype("float32")
    for shape in ((T, S), (1, S), (B, T, S), (B, T, 1), (B, H, T, S), (1, H, 1, S))
}

TABLE = draw(size=(6, H)).astype("float32")

# A bias, and its expected array, broadcastable to (B, H, T, S).
BIASES = {
    "alibi": (biases.alibi(H), reference.alibi(H, T, S)),
    "relative": (biases.relative(TABLE, max_distance=4), reference.relative(TABLE, T, S, 4)),
    "relative, one side": (
        biases.relative(TABLE, bidirectional=False, max_distance=5),
        reference.relative(TABLE, T, S, 5, bidirectional=False),
    ),
    "relative, one head": (
        biases.relative(TABLE[:, :1], max_distance=4),
        reference.relative(TABLE[:, :1], T, S, 4)[0, 0],
    ),
    "alibi + relative": (
        biases.alibi(H) + biases.relative(TABLE, max_distance=4),
        reference.alibi(H, T, S) + reference.relative(TABLE, T, S, 4),
    ),
    **{
        f"explicit {shape}": (biases.explicit(array), array[:, None] if array.ndim == 3 else array)
        for shape, array in ARRAYS.items()
    },
    "alibi + explicit": (
        biases.alibi(H) + ARRAYS[B, T, S],
        reference.alibi(H, T, S) + ARRAYS[B, T, S][:, None],
    ),
    "explicit + alibi + explicit": (
        ARRAYS[1, S] + biases.alibi(H) + biases.explicit(ARRAYS[1, H, 1, S]),
        ARRAYS[1, S] + reference.alibi(H, T, S) + ARRAYS[1, H, 1, S],
    ),
}


def spread(bias, queries=T, keys=S):
    """To (B, H, t, s)."""
    bias = np.asarray(bias)
    bias = bias[:, None] if bias.ndim == 3 else bias
    return np.broadcast_to(bias, (B, H, queries, keys))


@pytest.mark.parametrize("name", BIASES)
def test_bias_of_each_kind_equals_its_definition(name):
    bias, expected = BIASES[name]
    np.testing.assert_allclose(spread(bias.dense(T, S)), spread(expected), rtol=1e-6)
    bias.check("it", "bias", (B, H, T, S))
    by_head = bias.dense(T, S)
    assert bias.differs_by_head == (len(by_head.shape) == 4 and by_head.shape[1] != 1)
    config = keras.saving.serialize_keras_object(bias)
    assert config["registered_name"].startswith("tfattn>biases.")
    tensors, structure = objects.flatten(bias + biases.explicit(keras.Variable(np.ones((T, S)))))
    assert objects.is_shareable(structure) and len(tensors) > 0
    tensors, structure = objects.flatten(bias)
    assert objects.is_shareable(structure) and hash(structure) == hash(objects.flatten(bias)[1])
    for copy in (
        keras.saving.deserialize_keras_object(config),
        objects.unflatten(structure, tensors),
    ):
        assert type(copy) is type(bias)
        np.testing.assert_allclose(spread(copy.dense(T, S)), spread(expected), rtol=1e-6)


def test_alibi_for_any_number_of_heads_equals_oracle():
    for num_heads, queries, keys in ((2, T, S), (5, S, T), (8, 1, S), (12, T, S), (13, T, T)):
        found = biases.alibi(num_heads).dense(queries, keys)
        expected = reference.alibi(num_heads, queries, keys)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_alibi_of_one_head_serves_scores_without_heads(path):
    bias, expected = biases.alibi(1), reference.alibi(1, T, S)[0, 0]
    np.testing.assert_allclose(bias.dense(T, S), expected, rtol=1e-6)
    assert not bias.differs_by_head
    for shape in ((B, T, S), (B, 1, T, S), (B, None, T, S)):
        bias.check("it", "bias", shape)
    rng = np.random.default_rng(5)
    query, key, value = (rng.normal(size=(B, length, D)) for length in (T, S, S))
    output, _ = reference.attention(reference.dot_product(query, key) + expected, value)
    x = [as_tensor(x, "float32") for x in (query, value, key)]
    found = attend(*x[:2], key=x[2], bias=bias, path=path)
    np.testing.assert_allclose(found, output, rtol=1e-4, atol=1e-5)


def test_alibi_slopes_are_those_of_the_paper():
    np.testing.assert_allclose(biases.alibi(8).slopes(), 0.5 ** np.arange(1, 9))
    np.testing.assert_allclose(
        biases.alibi(16).slopes(), 0.5 ** np.arange(0.5, 8.5, 0.5), rtol=1e-12
    )
    # eight heads' slopes, and every second one of sixteen heads'
    np.testing.assert_allclose(biases.alibi(12).slopes()[8:], 0.5 ** np.array([0.5, 1.5, 2.5, 3.5]))


@pytest.mark.parametrize("name", BIASES)
def test_bias_in_blocks_is_cut_out_of_the_whole(name):
    bias, expected = BIASES[name]
    rng = np.random.default_rng(0)
    for case in range(8):  # of known beginnings, then of unknown ones
        (i, j), sides = rng.integers((0, 0), (T, S)).tolist(), rng.integers(1, (T, S)).tolist()
        begin = (i, j) if case < 4 else (as_tensor(i, "int32"), as_tensor(j, "int32"))
        block = spread(bias.on(masks.Grid(T, S, *begin, *sides), *bias.parameters()), *sides)
        assert np.isfinite(block).all()  # beyond the matrix too
        inside = spread(expected)[..., i : i + sides[0], j : j + sides[1]]
        block = block[..., : inside.shape[2], : inside.shape[3]]
        message = f"{sides} from {i}, {j}"
        np.testing.assert_allclose(block, inside, rtol=1e-5, atol=1e-6, err_msg=message)


def test_bias_in_a_block_of_some_rows_and_heads_has_those():
    for shape in ((B, T, S), (B, H, T, S)):
        bias, expected = BIASES[f"explicit {shape}"]
        grid = masks.Grid(T, S, 2, 3, 2, 4, batch_start=1, batch=1)
        np.testing.assert_array_equal(
            bias.on(grid, *bias.parameters())[0], ARRAYS[shape][1, ..., 2:4, 3:7]
        )
    for bias, expected in BIASES.values():
        for start in range(H) if bias.splits_by_head else ():
            begin = as_tensor(start) if start % 2 else start
            grid = masks.Grid(T, S, 2, 3, 2, 4, aligned=True, head_start=begin, heads=1)
            found = np.broadcast_to(bias.on(grid, *bias.parameters()), (B, 1, 2, 4))
            wanted = spread(expected)[:, start : start + 1, 2:4, 3:7]
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_bias_sum_splits_heads_where_all_its_parts_can():
    both, whole = biases.alibi(H) + ARRAYS[T, S], biases.alibi(H) + ARRAYS[B, H, T, S]
    assert both.splits_by_head and (ARRAYS[T, S] + biases.alibi(H)).splits_by_head
    assert not whole.splits_by_head and not biases.explicit(ARRAYS[B, H, T, S]).splits_by_head


FACTORED = [
    name
    for name, (bias, *_) in BIASES.items()
    if "explicit" not in name and type(bias).has_factors is not biases.Bias.has_factors
]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FACTORED, "alibi + explicit"])
def test_bias_factors_have_the_bias_as_their_product(name):
    bias, length, seen = BIASES[name][0], 13, set()
    far = {"alibi": 0, "relative, one side": 5}.get(name, length if "explicit" in name else 4)
    after = 0 if "one side" in name else far  # on one side, keys after the query share a bucket
    for i in range(0, length, 2):
        for j in range(0, length, 3):
            begin = (i, j) if j % 2 else (as_tensor(i), as_tensor(j))
            head = (
                {"head_start": as_tensor(1), "heads": 1} if i % 4 and "explicit" not in name else {}
            )
            grid = masks.Grid(length, length, *begin, 2, 3, **head)
            distance = np.arange(j, j + 3) - np.arange(i, i + 2)[:, None]
            known = np.all(distance <= -far) or np.all(distance >= after)
            assert bool(bias.has_factors(grid)) == known
            seen.add(known)
            if known:
                left, right = map(numpy, bias.factors(grid, *bias.parameters()))
                block = numpy(bias.on(grid, *bias.parameters()))
                product = left @ right.T  # (h, 2, 3)
                np.testing.assert_allclose(product, block.reshape(product.shape), rtol=1e-6)
    assert len(seen) == (2 if far < length else 1)


@pytest.mark.slow
def test_bias_subclass_with_another_on_has_no_factors():
    class Cubed:
        def on(self, grid):
            return super().on(grid) ** 3

    class Steeper(biases.alibi):
        def on(self, grid):
            return super().on(grid) ** 3

    class Mixed(Cubed, biases.alibi):
        pass

    class Twice(biases.explicit):
        def on(self, grid, bias):
            return 2 * super().on(grid, bias)

    draw = np.random.default_rng(5).normal
    query, key, value = (draw(size=(B, H, 13, D)).astype("float32") for _ in range(3))
    for bias in (Steeper(H), Mixed(H), Twice(draw(size=(13, 13)).astype("float32"))):
        arguments = {"key": key, "mask": masks.causal(), "bias": bias}
        with blocks_of((3, 3)):
            here, there = (attend(query, value, **arguments, path=path) for path in PATHS)
        np.testing.assert_allclose(numpy(here), numpy(there), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "kind, queries, keys, rule",
    [
        ("sum", 13, 13, masks.causal()),
        ("one head", 13, 7, None),
        ("nothing learned", 7, 13, masks.causal()),
    ],
)
def test_bias_blocks_along_a_diagonal_share_bias_and_gradient(
    kind, queries, keys, rule, monkeypatch
):
    from tfattn.core.engine.tensorflow import block_bias

    shared, find = [], block_bias._kept_diagonals
    monkeypatch.setattr(
        block_bias, "_kept_diagonals", lambda *a: shared.append(find(*a)) or shared[-1]
    )
    draw = np.random.default_rng(5).normal
    shapes = (B, H, queries, D), (B, H, keys, D), (B, H, keys, D)
    operands = [draw(size=shape) for shape in shapes] + [TABLE.astype("float64")]

    def run(path):
        def output(query, key, value, table):
            bias = biases.alibi(H)
            if kind != "nothing learned":
                table = table[:, :1] if kind == "one head" else table
                relative = biases.relative(table, max_distance=4)
                bias = relative if kind == "one head" else bias + relative
            return attend(query, value, key=key, mask=rule, bias=bias, path=path)

        with blocks_of((3, 3)):
            return both_ways(output, operands)

    (here, gradients), (there, wanted) = run("streamed"), run("dense")
    assert shared and {len(found) for found in shared} <= {1, 3}
    for one, other in zip([here, *gradients], [there, *wanted], strict=True):
        if other is not None:
            np.testing.assert_allclose(numpy(one), numpy(other), rtol=1e-5, atol=1e-5)


def test_bias_with_an_offset_is_that_of_the_square():
    relative, of_square = biases.relative(TABLE, max_distance=4), reference.alibi(H, S, S)
    bias = biases.alibi(H) + relative
    square = of_square + reference.relative(TABLE, S, S, 4)
    for position in range(S):
        offset = as_tensor(position) if position % 2 else position
        row = bias.on(masks.Grid.whole(1, S, offset=offset), *bias.parameters())
        np.testing.assert_allclose(row, square[:, :, position : position + 1], rtol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_bias_held_as_a_variable_gets_its_gradient(path):
    rng = np.random.default_rng(11)
    query, key, value, upstream = (rng.normal(size=(1, H, n, 2)) for n in (T, S, S, T))
    array = rng.normal(size=(1, H, 1, S))

    def pooled(array):
        scores = reference.dot_product(query, key) + array + reference.alibi(H, T, S)
        return reference.attention(scores, value)[0]

    x = [as_tensor(x, "float32") for x in (query, value, key)]
    (expected,) = reference.slopes(lambda array: (pooled(array) * upstream).sum(), array)
    held = keras.Variable(array, dtype="float32")
    bias = biases.alibi(H) + biases.explicit(held)  # built before the gradient
    output, (gradient,) = both_ways(
        lambda: attend(*x[:2], key=x[2], bias=bias, path=path), (), upstream, [held]
    )
    np.testing.assert_allclose(output, pooled(array), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_bias_variable_of_either_library_has_its_gradient_in_a_graph():
    rng = np.random.default_rng(11)
    x = [as_tensor(rng.normal(size=(1, H, n, 2)), "float32") for n in (T, S, S)]
    table = keras.Variable(rng.normal(size=(8, H)), dtype="float32")
    array, weight = (tf.Variable(rng.normal(size=s), dtype="float32") for s in ((1, S), (2, 1)))
    relative = biases.relative(table, max_distance=5)
    held = relative + biases.explicit(array)  # built before the tape

    def gradients(path, bias):
        with tf.GradientTape() as tape:
            options = {"score": additive, "parameters": [weight], "path": path}
            total = ops.sum(ops.sin(attend(*x[:2], key=x[2], bias=bias, **options)))
        variables = (table.value, array, weight)
        return [tf.convert_to_tensor(x) for x in tape.gradient(total, variables)]

    expected = gradients("dense", held)
    assert all(np.abs(gradient).max() > 1e-3 for gradient in expected)
    for path in PATHS:
        in_graph = tf.function(gradients, autograph=False)
        for found in (gradients(path, relative + array), in_graph(path, held)):
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class Far(biases.Bias):
    """A learned number for keys that come after the query, in a variable that the bias keeps."""

    def __init__(self):
        self.number = keras.Variable(2.0, dtype="float32")

    def parameters(self):
        return (ops.cast(self.number, "float32"),)

    def on(self, grid, number):
        return number * ops.cast(grid.key_positions() > grid.query_positions(), "float32")


@pytest.mark.slow
@pytest.mark.tensorflow
def test_bias_sum_with_a_kept_variable_has_a_gradient():
    x, bias, found = draw(size=(1, H, T, 2)).astype("float32"), Far(), []
    for path in PATHS:
        with tf.GradientTape() as tape:
            output = attend(x, x, bias=bias + biases.alibi(H), path=path)
            total = ops.sum(ops.sin(output))
        found.append(tape.gradient(total, bias.number.value))
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert np.abs(found[0]) > 1e-3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", FLOAT64, "int32"])
def test_bias_saved_array_keeps_its_dtype(dtype):
    bias = biases.explicit(ops.cast(ARRAYS[T, S] * 3, dtype))
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(bias))
    assert copy.bias.dtype == bias.bias.dtype
    np.testing.assert_array_equal(copy.bias, bias.bias)
    assert "float" in keras.backend.standardize_dtype(copy.dense(T, S).dtype)


def test_bias_of_ones_own_joins_the_others():
    class Recent(biases.Bias):
        """A learned number per token of distance."""

        def __init__(self, slope):
            self.slope = slope

        def parameters(self):
            return (self.slope,)

        def on(self, grid, slope):
            return slope * ops.cast(grid.key_positions() - grid.query_positions(), slope.dtype)

    slope = as_tensor(0.25)
    tensors, structure = objects.flatten(Recent(slope) + ARRAYS[B, T, S])
    assert len(tensors) == 1 and not objects.is_shareable(structure)
    distance = np.arange(S) - np.arange(S - T, S)[:, None]
    again = objects.unflatten(structure, tensors)
    np.testing.assert_allclose(again.dense(T, S), 0.25 * distance + ARRAYS[B, T, S], rtol=1e-5)
    # `on` computes from its arguments
    other = again.on(masks.Grid.whole(T, S), 2 * slope, ops.zeros((1, 1, 1)))
    np.testing.assert_allclose(other[0], 0.5 * distance)


def test_bias_array_joins_from_either_side():
    array = ARRAYS[T, S]
    expected = reference.alibi(H, T, S) + array
    for other in (array, as_tensor(array)):
        for bias in (biases.alibi(H) + other, other + biases.alibi(H)):
            np.testing.assert_allclose(bias.dense(T, S), expected, rtol=1e-5)


SHAPE = (B, H, T, S)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: biases.relative(TABLE[:5]), "`table rows` must be an even number of at least 4"),
        (lambda: biases.relative(TABLE[:1], bidirectional=False), "must be at least 2, one per"),
        (lambda: biases.relative(TABLE, max_distance=1), "`max_distance` must be above 1"),
        (
            lambda: biases.relative(keras.Input((H,), batch_size=6)).check("it", "bias", SHAPE),
            "it: `bias` must hold no symbolic tensor inside of an object",
        ),
        (
            lambda: biases.relative(TABLE[:, :2]).check("it", "bias", SHAPE),
            r"as many heads as the scores, 3. Received: bias='relative\(6, 2\)'",
        ),
        (
            lambda: biases.alibi(5).check("it", "bias", SHAPE),
            r"it: `bias` must have as many heads as the scores, 3. Received: bias='alibi\(5\)'",
        ),
        (lambda: biases.alibi(5).check("it", "bias", (B, T, S)), "as many heads as the scores, 1"),
        (lambda: biases.alibi(1).check("it", "bias", SHAPE), "as many heads as the scores, 3"),
        (
            lambda: (biases.alibi(5) + np.zeros((T, S))).check("it", "bias", SHAPE),
            "as many heads as the scores, 3",
        ),
        (
            lambda: biases.explicit(np.zeros((T, S + 1))).check("it", "bias", SHAPE),
            r"it: `bias` must have shape \(T, S\)",
        ),
        (
            lambda: biases.explicit(keras.Input((T, S))).check("it", "bias", SHAPE),
            "no symbolic tensor inside of an object",
        ),
    ],
)
def test_bias_with_invalid_arguments_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
