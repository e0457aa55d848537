"""A model computes, trains, is evaluated and searched alike on every backend: with the numbers of
`backend_numbers.json`, which TensorFlow gave.
"""

import numpy as np
import pytest

from tests.helpers import backend_numbers

# The bias of a key moves no softmax: its gradient is rounding.
WITHOUT_A_GRADIENT = "key/bias"


@pytest.mark.nightly  # and in `backends.sh`, which names it
@pytest.mark.parametrize("name", backend_numbers.MODELS)
def test_model_on_any_backend_trains_and_searches_to_the_same_numbers(name):
    wanted, found = backend_numbers.recorded()[name], backend_numbers.numbers_of(name)
    assert found.keys() == wanted.keys() and len(found) > 20
    for key, numbers in wanted.items():
        if not key.endswith(WITHOUT_A_GRADIENT):
            np.testing.assert_allclose(found[key], numbers, rtol=1e-3, atol=1e-3, err_msg=key)
