"""The rule for beams only: coverage."""

import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.helpers.searches import (
    IDS,
    assert_same,
    beams_in_python,
    eagerly,
    recurrent,
    tables,
    transformer,
    trigram,
)
from tests.helpers.tensors import as_tensor, numpy
from tfattn import decoding, rules

pytestmark = pytest.mark.usefixtures("dense_path")

S = 5  # source tokens


def looking(tokens, position, state):
    """`trigram` with attention to the source by the last token: weights `(B, V, S)`."""
    logits, table = trigram(tokens, position, state["table"])
    last = ops.take(tokens, position, axis=1)[:, None, None]
    looked_at = ops.take_along_axis(state["weights"], last, axis=1)[:, 0]
    coverage = state["coverage"] + looked_at
    return logits, {**state, "table": table, "coverage": coverage}


@pytest.mark.slow
@pytest.mark.parametrize("penalty, strength", [(1.0, 0.4), (0.0, 0.5)])
@eagerly()
def test_coverage_penalty_counts_only_in_beams_that_have_ended(penalty, strength):
    table, hidden = tables(9, batch=11, size=7, scale=2.0), np.arange(S) >= 3
    weights = np.random.default_rng(5).dirichlet(np.full(3, 0.3), size=(11, 7))
    weights = np.pad(weights, [(0, 0), (0, 0), (0, 2)])
    coverage = np.tile(hidden.astype("float32"), (11, 1))  # padding is no part of the source
    state = {"table": table, "weights": weights.astype("float32"), "coverage": coverage}
    options = {"num_beams": 4, "num_results": 2, "length_penalty": penalty}
    own = [rules.CoveragePenalty(strength)]
    found = decoding.BeamSearch(rules=own, **options)(looking, state, 11, 6, **IDS)
    for row in range(11):

        def missed(tokens, row=row):
            seen = np.maximum(weights[row, list(tokens[:-1]), :3], 1e-300)
            return reference.coverage_penalty(seen, strength)

        wanted = beams_in_python(table[row], 6, penalty, 4, at_end=missed)
        assert_same(found, wanted[:2], row)


@pytest.mark.slow
@eagerly()
def test_coverage_penalty_of_an_unseen_source_token_is_finite():
    table = tables(3, batch=1, size=6)
    weights = np.eye(S)[np.zeros((1, 6), int)].astype("float32")
    state = {"table": table, "weights": weights, "coverage": np.zeros((1, S), "float32")}
    found = decoding.BeamSearch(rules=[rules.CoveragePenalty(1.0)])(looking, state, 1, 3, **IDS)
    assert np.isfinite(numpy(found.scores)).all()


def test_coverage_penalty_of_a_state_without_coverage_is_refused():
    message = "step: `state` must have the entry 'coverage' for CoveragePenalty"
    with pytest.raises(ValueError, match=message):
        decoding.BeamSearch(rules=[rules.CoveragePenalty(0.2)])(
            trigram, tables(0, 1, 5), 1, 3, **IDS
        )


SOURCE = np.array([[4, 5, 6, 7, 8], [7, 8, 4, 0, 0]])
TARGET = np.array([[2, 4, 5, 6], [2, 7, 8, 5]])


def stepped(model, **options):
    """(Logits of the last position, state), after all steps."""
    state = model.encode(SOURCE, max_length=4, **options)
    for position in range(4):
        logits, state = model.step(as_tensor(TARGET), position, state)
    return logits, state


@pytest.mark.slow
def test_coverage_of_a_transformer_sums_the_weights_of_its_last_block():
    model = transformer(num_layers=2)
    logits, state = stepped(model, coverage=True)
    np.testing.assert_allclose(logits, stepped(model)[0], atol=1e-5)
    weights = tfattn.attention_weights(model, (SOURCE, TARGET))
    *_, last = (w for path, w in weights.items() if "cross" in path)
    wanted = numpy(last).mean(axis=1).sum(axis=1) + (SOURCE == 0)
    np.testing.assert_allclose(state["coverage"], wanted, rtol=1e-4)
    assert np.ptp(numpy(state["coverage"])[0]) > 0.3


@pytest.mark.slow
def test_coverage_of_a_recurrent_model_sums_its_alignments():
    model = recurrent()
    logits, state = stepped(model, alignments=True, coverage=True)
    np.testing.assert_allclose(logits, stepped(model)[0], atol=1e-5)
    wanted = numpy(state["alignments"]).sum(axis=1) + (SOURCE == 0)
    np.testing.assert_allclose(state["coverage"], wanted, rtol=1e-5)


def test_coverage_of_a_transformer_without_caches_is_refused():
    with pytest.raises(ValueError, match="^Transformer: `max_length` must be a positive integer"):
        transformer().encode(SOURCE, coverage=True)
