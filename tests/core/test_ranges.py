"""Ranges of keys against sets of keys, their ends ints or tensors."""

import itertools

import numpy as np
import pytest
from keras import ops

from tfattn.core.masks import ranges

S = 4
EVERY = [(low, high) for low in range(S + 1) for high in range(S + 1)]
SOME = [(low, high) for low, high in EVERY if low < high]

each = pytest.mark.parametrize("end", [int, lambda x: ops.convert_to_tensor(np.int32(x))])


def keys(bounds):
    return set(range(*(int(bound) for bound in bounds)))


def around(some):
    """The least range with all these keys."""
    return set(range(min(some), max(some) + 1)) if some else set()


@each
def test_ranges_of_two_are_their_overlap_hull_or_longer(end):
    for first, second in itertools.product(SOME[::2], SOME):
        both = [tuple(map(end, bounds)) for bounds in (first, second)]
        assert keys(ranges.overlap(*both)) == keys(first) & keys(second)
        assert keys(ranges.hull(*both)) == around(keys(first) | keys(second))
        longer = keys(ranges.longer(*both))
        assert longer in (keys(first), keys(second))
        assert len(longer) == max(len(keys(first)), len(keys(second)))


def test_ranges_of_ints_are_ints():
    pairs = (ranges.overlap, ranges.hull, ranges.longer)
    results = [of((0, 2), (1, 3)) for of in pairs]
    assert all(type(x) is int for result in results for x in result)
