"""Rules for beams only: coverage, diverse groups, and the trace of a search."""

import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.helpers.searches import (
    END,
    IDS,
    PAD,
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


# Coverage.


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


# Levels, and tokens that a rule proposes.


class Surprise(rules.Rule):
    """Two levels: beams with a token and beams without it, however unlikely it is."""

    levels = 2

    def __init__(self, token):
        self.token = token

    def start(self, tokens, limits):
        return ops.zeros_like(limits)

    def adjust(self, logits, tokens, position, state):
        last = ops.take(tokens, position, axis=1)
        return logits, ops.maximum(state, ops.cast(last == self.token, "int32"))

    def proposed(self, tokens, position, state):
        ids = ops.full_like(tokens[:, :1], self.token)
        return ids, ops.broadcast_to(position == 1, ops.shape(ids))

    def level(self, candidates, tokens, position, state):
        return ops.maximum(state[:, None], ops.cast(candidates == self.token, "int32"))


@pytest.mark.slow
@eagerly()
def test_a_rule_of_ones_own_proposes_tokens_and_keeps_beams_of_its_levels_side_by_side():
    table = tables(7, batch=5, size=9)
    table[..., 5] = -30.0
    search = decoding.BeamSearch(4, num_results=4, length_penalty=0.0, rules=[Surprise(5)])
    found, plain = (
        each(trigram, table, 5, 6, **IDS) for each in (search, decoding.BeamSearch(4, 0.0, 4))
    )
    assert not (numpy(plain.tokens) == 5).any()
    for row, scores in zip(numpy(found.tokens), numpy(found.scores), strict=True):
        kept = row[scores > -np.inf]
        has = kept == 5
        # The second token alone is proposed.
        assert has[:, 1].any() and not np.delete(has, 1, axis=1).any()
        assert not has.any(axis=1).all() and (np.diff(scores) <= 0).all()


# Groups.


def with_rules(scores, written, limit):
    for adjust in (
        lambda s: reference.no_repeat_ngrams(s, list(written), 1),
        lambda s: reference.min_length(s, written, 3, END),
        lambda s: reference.required_tokens(s, list(written), [[5]], limit, END),
    ):
        scores = adjust(scores)
    return scores


@pytest.mark.slow
@pytest.mark.parametrize(
    "groups, strength, has_rules",
    [(1, 2.0, False), (3, 0.7, False), (6, 3.0, False), (3, 3.0, True)],
)
@eagerly()
def test_groups_find_what_groups_in_python_find(groups, strength, has_rules):
    table, limits = tables(11, batch=7, size=9), [6, 3, 7, 5, 6, 4, 3]
    options = {"num_beams": 6, "num_results": 6, "length_penalty": 0.6}
    arguments = {"groups": groups, "strength": strength}
    if has_rules:
        own = [rules.NoRepeatNgrams(1), rules.MinLength(3), rules.RequiredTokens([5])]
        options["rules"], arguments["adjusted"] = own, with_rules
    diverse = decoding.DiverseBeams(groups, strength)
    found = decoding.BeamSearch(diverse=diverse, **options)(trigram, table, 7, limits, **IDS)
    for row, limit in enumerate(limits):
        wanted = beams_in_python(table[row], limit, 0.6, 6, **arguments)
        scores, beams = numpy(found.scores[row]), numpy(found.tokens[row])
        there = scores > -np.inf
        np.testing.assert_allclose(scores[there], [s for s, _ in wanted], rtol=1e-5)
        got = [tuple(t for t in beam if t != PAD) for beam in beams[there].tolist()]
        assert sorted(got) == sorted(tokens for _, tokens in wanted)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: decoding.DiverseBeams(0), "DiverseBeams: `groups` must be a positive integer"),
        (lambda: decoding.DiverseBeams(2, -1), "DiverseBeams: `strength` must be a finite number"),
        (lambda: decoding.DiverseBeams(3), "BeamSearch: `diverse` must divide `num_beams`=4"),
    ],
)
def test_groups_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        decoding.BeamSearch(diverse=make())(trigram, tables(0, 1, 5), 1, 3, **IDS)


# The trace.


def sentence_trace(trace, row):
    """A trace of one sentence by NumPy."""
    return type(trace)(*(numpy(array)[row] for array in trace))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "groups", "required"])
@eagerly()
def test_a_trace_tells_how_the_results_came_about(kind):
    options = {
        "plain": {},
        "groups": {"diverse": decoding.DiverseBeams(2, 1.0)},
        "required": {"rules": [rules.RequiredTokens([5, [3, 4]])]},
    }[kind]
    table = tables(19, batch=7, size=7, scale=3.0)
    options = {"num_beams": 4, "num_results": 4, **options}
    found = decoding.BeamSearch(return_trace=True, **options)(trigram, table, 7, 6, **IDS)
    plain = decoding.BeamSearch(**options)(trigram, table, 7, 6, **IDS)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-5)
    assert plain.trace is None
    for row in range(7):
        trace = sentence_trace(found.trace, row)
        steps = (trace.scores > -np.inf).any(axis=1).sum()
        assert 0 < steps <= 6 and (trace.scores[steps:] == -np.inf).all()
        # From each last beam back to the begin token.
        texts = {}
        for beam in np.flatnonzero(trace.scores[steps - 1] > -np.inf):
            text, at = [], beam
            for step in reversed(range(steps)):
                text.append(int(trace.tokens[step, at]))
                at = trace.parents[step, at]
            texts[tuple(t for t in text[::-1] if t != PAD)] = trace.scores[steps - 1, beam]
        results = zip(numpy(found.tokens[row]).tolist(), numpy(found.scores[row]), strict=True)
        for tokens, score in results:
            if score > -np.inf:
                assert texts[tuple(t for t in tokens if t != PAD)] == pytest.approx(score)
        # The kept candidates are the beams, and each has a parent among the beams before.
        for step in range(steps):
            kept = trace.kept[step]
            went_on = set(trace.candidate_parents[step][kept].tolist())
            alive = trace.scores[step] > -np.inf
            assert kept.sum() == alive.sum()
            before = [0] if step == 0 else np.flatnonzero(trace.scores[step - 1] > -np.inf).tolist()
            died = np.flatnonzero(trace.died[step]).tolist()
            assert sorted([*went_on, *died]) == sorted(before)
            assert set(trace.parents[step][alive].tolist()) == went_on
            assert np.isin(trace.scores[step][alive], trace.candidate_scores[step][kept]).all()
            if kind == "plain":
                rest = trace.candidate_scores[step][~kept]
                assert rest.max(initial=-np.inf) <= trace.scores[step][alive].min()


@pytest.mark.slow
@eagerly()
def test_a_trace_ends_for_each_sentence_where_the_sentence_is_done():
    """Before its end the trace equals a beam search in Python."""
    table, limits = tables(23, batch=4, size=6, scale=3.0), [2, 9, 5, 7]
    options = {"num_beams": 3, "return_trace": True}
    found = decoding.BeamSearch(**options)(trigram, table, 4, limits, **IDS)
    taken = []
    for row, limit in enumerate(limits):
        trace = sentence_trace(found.trace, row)
        taken.append((trace.scores > -np.inf).any(axis=1).sum())
        alone = decoding.BeamSearch(**options)(trigram, table[row : row + 1], 1, [limit], **IDS)
        for mine, theirs in zip(trace, sentence_trace(alone.trace, 0), strict=True):
            np.testing.assert_allclose(theirs[: taken[-1]], mine[: taken[-1]], rtol=1e-5)
        for step in range(taken[-1]):
            wanted = [score for score, _ in beams_in_python(table[row], step + 1, 1.0, 3)]
            np.testing.assert_allclose(trace.scores[step][: len(wanted)], wanted, rtol=1e-5)
    assert len(set(taken)) > 2 and taken[0] <= 2
