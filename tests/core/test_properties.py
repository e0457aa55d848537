"""Random calls against the oracle: shapes, dtypes, masks, biases, normalizers and paths of `attend`
with every gradient, and `MultiHeadAttention` with its positions and its many names for masks.

`python tests/fuzz.py` draws many more of the same cases.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests import reference
from tests.helpers import properties
from tests.helpers.properties import expected, problem_of
from tests.helpers.tensors import BACKEND

# Some hundred cases, the same each time: `fuzz.py` is for others. Each traces what it runs.
DRAWN = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


SEEDS = st.integers(0, 2**32 - 1)
SHARE = 10 if BACKEND == "jax" else 1  # JAX compiles each operation of each case


def chooser(seed):
    """The function that chooses, as in `fuzz.py`: each choice by itself.

    Hypothesis makes its next case out of pieces of those before: of 200 that it chose step by step
    none had shared heads of keys under a score that is no product.
    """
    rng = np.random.default_rng(seed)
    return lambda options: options[int(rng.integers(len(options)))]


@pytest.mark.slow
@settings(DRAWN, max_examples=200 // SHARE)
@given(SEEDS)
def test_attend_equals_the_oracle_in_output_and_every_gradient(seed):
    properties.check_attend(chooser(seed))


@pytest.mark.slow
@settings(DRAWN, max_examples=100 // SHARE)
@given(SEEDS)
def test_heads_equal_the_oracle_under_any_positions_and_masks(seed):
    properties.check_layer(chooser(seed))


def small_problems(count):
    """Problems of float64 whose gradients the oracle has, with scores that have some slope."""
    for seed in range(1000):
        problem = problem_of(chooser(seed))
        if problem.score_gradient is not None and 0 < np.prod(problem.sizes.scores) < 20:
            yield pytest.param(problem, id=str(seed))
            count -= 1
        if not count:
            return


@pytest.mark.parametrize("problem", list(small_problems(24)))
def test_gradients_of_the_oracle_are_its_slopes(problem):
    shape = (*problem.sizes.scores[:-1], problem.sizes.value_width)
    upstream = np.random.default_rng(3).normal(size=shape)

    def functional(*arrays):
        output, *_ = expected(problem._replace(arrays=list(arrays)), upstream)
        return (upstream * output).sum()

    slopes = reference.slopes(functional, *problem.arrays)
    for gradient, slope in zip(expected(problem, upstream)[3], slopes, strict=True):
        np.testing.assert_allclose(gradient, slope, 1e-5, 1e-7)
