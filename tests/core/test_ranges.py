"""Ranges of keys against sets of keys, their ends ints or tensors."""

import itertools

import numpy as np
import pytest
from keras import ops

from tfattn.core.masks import ranges

S = 4
EVERY = [(low, high) for low in range(S + 1) for high in range(S + 1)]
SOME = [(low, high) for low, high in EVERY if low < high]


def keys(bounds):
    return set(range(*(int(bound) for bound in bounds)))


@pytest.fixture(params=["ints", "tensors"])
def ends(request):
    """A range with ends of either kind."""
    convert = int if request.param == "ints" else lambda x: ops.convert_to_tensor(np.int32(x))
    return lambda bounds: tuple(map(convert, bounds))


def pairs(ends):
    for first, second in itertools.product(SOME[::2], SOME):
        yield (first, second), (ends(first), ends(second))


def test_an_overlap_is_what_both_have(ends):
    for (first, second), given in pairs(ends):
        assert keys(ranges.overlap(*given)) == keys(first) & keys(second)


def test_a_hull_is_the_least_range_around_both(ends):
    for (first, second), given in pairs(ends):
        wanted = keys(first) | keys(second)
        assert keys(ranges.hull(*given)) == set(range(min(wanted), max(wanted) + 1))


def test_the_longer_range_is_either_range(ends):
    for (first, second), given in pairs(ends):
        found = keys(ranges.longer(*given))
        assert found in (keys(first), keys(second))
        assert len(found) == max(len(keys(first)), len(keys(second)))


def test_the_complement_is_the_least_range_around_the_rest(ends):
    for taken in EVERY:
        rest = set(range(S)) - keys(taken)
        wanted = set(range(min(rest), max(rest) + 1)) if rest else set()
        assert keys(ranges.complement(ends(taken), S)) == wanted


def test_ranges_of_ints_are_ints():
    results = [
        operation((0, 2), (1, 3)) for operation in (ranges.overlap, ranges.hull, ranges.longer)
    ]
    results.append(ranges.complement((0, 2), 3))
    assert all(type(x) is int for result in results for x in result)
