"""Drawn calls against the oracle: shapes, dtypes, masks, biases, normalizers and paths of `attend`
with every gradient, `MultiHeadAttention` with its positions and its many names for masks, and masks
with all their hooks.

`python tests/fuzz.py` draws many more of the same cases.
"""

import pytest

from tests.helpers import properties
from tests.helpers.tensors import BACKEND

SHARE = 10 if BACKEND == "jax" else 1  # JAX compiles each operation of each case


@pytest.mark.slow
def test_attend_drawn_call_equals_oracle_in_output_and_gradients():
    properties.check_cases("attend", range(80 // SHARE))


@pytest.mark.slow
def test_multi_head_drawn_call_equals_oracle():
    properties.check_cases("layer", range(60 // SHARE))


@pytest.mark.slow
def test_mask_drawn_and_joined_equals_oracle_in_every_hook():
    properties.check_cases("mask", range(200 // SHARE))


@pytest.mark.nightly
@pytest.mark.parametrize("name, count", [("attend", 3000), ("layer", 1000), ("mask", 5000)])
def test_drawn_case_of_any_number_equals_oracle(name, count):
    properties.check_cases(name, range(200, 200 + count // SHARE))
