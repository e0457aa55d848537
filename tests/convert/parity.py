"""What the tests of converters share: weights that no initializer gives, and layers compared."""

import numpy as np
import pytest

from tfattn.convert import weights


def randomized(layer, seed=0):
    """The built layer itself, with every weight normal: biases are not 0, and scales not 1."""
    rng = np.random.default_rng(seed)
    for variable in layer.weights:
        variable.assign(0.7 * rng.normal(size=tuple(variable.shape)) + 0.1)
    return layer


def tokens(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def close(found, wanted, **options):
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=1e-5, **options)


def same_weights(one, other):
    """Bit for bit, under the same names."""
    one, other = weights.arrays(one), weights.arrays(other)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def refused(name):
    return pytest.raises(ValueError, match=f"`{name}` cannot be converted")
