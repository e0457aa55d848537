"""The cost of a step on paper, against models and the paper. Against what JAX traces:
`tests/distributed/test_layouts.py`.
"""

import math
import re

import pytest

import tfattn
from tfattn.training import step_cost

SIZES = {"num_layers": 2, "width": 15, "num_heads": 5, "hidden_dim": 17}
SMALL = [
    {"source_vocabulary_size": 41, "target_vocabulary_size": 37, **SIZES},
    {"source_vocabulary_size": 41, "target_vocabulary_size": 41, "share_embeddings": True, **SIZES},
]
PAPER = {
    "source_vocabulary_size": 37_000,
    "target_vocabulary_size": 37_000,
    "num_layers": 6,
    "share_embeddings": True,
}
BASE = {**PAPER, "width": 512, "num_heads": 8, "hidden_dim": 2048}
BIG = {**PAPER, "width": 1024, "num_heads": 16, "hidden_dim": 4096}
LENGTHS = {"batch_size": 60, "source_length": 7, "target_length": 11}


@pytest.mark.parametrize("sizes", SMALL)
def test_it_counts_the_weights_that_the_model_has(sizes):
    model = tfattn.Transformer(**sizes)
    model.build(((None, None), (None, None)))
    trainable = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    assert step_cost(model.get_config(), **LENGTHS).parameters == trainable


@pytest.mark.parametrize(
    ("config", "millions", "paper"),
    [(BASE, 63.1, 65), (BIG, 214.2, 213)],  # Vaswani et al. 2017, table 3, rounded there
)
def test_the_base_and_the_big_model_have_about_the_papers_parameters(config, millions, paper):
    parameters = step_cost(config, **LENGTHS).parameters / 1e6
    assert parameters == pytest.approx(millions, abs=0.05)
    assert parameters == pytest.approx(paper, rel=0.03)


def test_devices_divide_the_operations_and_hold_what_they_have_of_the_weights():
    one, split = (step_cost(BASE, **LENGTHS, data_parallel=d) for d in (1, 3))
    assert split.flops == one.flops == 3 * split.device_flops
    assert (split.weights, split.optimizer) == (one.weights, one.optimizer)
    assert split.activations == one.activations // 3
    parts = step_cost(BASE, **LENGTHS, model_parallel=8)
    whole = 4 * 6 * 15 * 512  # biases after sums, and norms
    assert parts.weights == (one.weights - whole) // 8 + whole
    assert parts.device_flops == one.flops // 8
    assert one.activations / 8 < parts.activations < one.activations


def test_memory_counts_gradients_and_averages():
    cost = step_cost(BASE, **LENGTHS, averages=3)
    assert cost.weights == cost.gradients == 4 * cost.parameters == cost.optimizer // 3
    assert cost.memory == 5 * cost.weights + cost.activations
    half = step_cost(BASE, **LENGTHS, averages=3, number_bytes=2)
    assert half.memory == cost.memory // 2


def test_a_device_sends_its_gradients_less_than_twice_and_alone_nothing():
    alone = step_cost(BASE, **LENGTHS)
    assert alone.traffic == alone.gradient_traffic == alone.activation_traffic == 0
    two, many = (step_cost(BASE, **LENGTHS, data_parallel=d).gradient_traffic for d in (2, 60))
    assert two == 4 * alone.parameters
    assert many == 2 * 4 * alone.parameters * 59 // 60


def test_of_split_maps_sums_travel_which_grow_with_the_words_and_not_with_the_weights():
    # Of 60 rows: per layer two sums of the source and three of the target, both ways, and the
    # gradient of the memory; lookups; the output's gradient and softmax.
    n, t = 60 * 7, 60 * 11
    numbers = 6 * 512 * (2 * (2 * n + 3 * t) + n) + 512 * (n + t) + t * (512 + 3)
    cost = step_cost(BASE, **LENGTHS, model_parallel=4)
    assert cost.activation_traffic == 2 * 4 * numbers * 3 // 4
    assert cost.gradient_traffic == 0
    both = step_cost(BASE, **LENGTHS, model_parallel=4, data_parallel=2)
    assert both.activation_traffic == cost.activation_traffic // 2
    assert both.traffic == both.activation_traffic + both.gradient_traffic


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data_parallel": 7}, "`data_parallel` must divide `batch_size`=60 without remainder"),
        ({"model_parallel": 3}, "`model_parallel` must divide `heads`=8 without remainder"),
        ({"config": {**BASE, "width": None}}, "`width` must be a positive integer"),
        ({"config": PAPER}, "`config` must have an entry 'width'. Received: config=['source_voc"),
        ({"config": {**BASE, "block": {}}}, "`config` must have no `block` of its own"),
    ],
)
def test_what_cannot_be_counted_is_refused(changed, message):
    with pytest.raises(ValueError, match=re.escape(f"step_cost: {message}")):
        step_cost(**{"config": BASE, **LENGTHS, **changed})
