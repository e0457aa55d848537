"""What is about beams alone: coverage, groups that differ, and the trace of a search."""

import functools

import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.tensors import CALLS_A_TRACE, as_tensor, needs_compiling, numpy
from tests.test_decoding_beams import (
    BEGIN,
    END,
    IDS,
    PAD,
    assert_same,
    beams_in_python,
    log_probabilities,
    tables,
    trigram,
)
from tfattn import decoding, rules

pytestmark = pytest.mark.usefixtures("dense_path")

S = 5  # source tokens


# Coverage.


def looking(tokens, position, state):
    """`trigram`, whose step looks at the source by its last token: weights `(B, V, S)`."""
    logits, table = trigram(tokens, position, state["table"])
    last = ops.take(tokens, position, axis=1)[:, None, None]
    looked_at = ops.take_along_axis(state["weights"], last, axis=1)[:, 0]
    coverage = state["coverage"] + looked_at
    return logits, {**state, "table": table, "coverage": coverage}


def sources(seed, batch, size, padding):
    """Weights `(B, V, S)`, the last `padding` of the source hidden, and the state's beginning."""
    weights = np.random.default_rng(seed).dirichlet(np.full(S - padding, 0.3), size=(batch, size))
    weights = np.pad(weights, [(0, 0), (0, 0), (0, padding)])
    hidden = np.arange(S) >= S - padding
    return weights, np.tile(hidden.astype("float32"), (batch, 1))


def with_coverage(table, weights, limit, penalty, strength):
    """(score, tokens) of all that can be written, the best first."""
    found, live = [], [((BEGIN,), 0.0)]
    for length in range(1, limit + 1):
        longer = [
            ((*tokens, token), total + gain)
            for tokens, total in live
            for token, gain in enumerate(log_probabilities(table, tokens))
            if gain > -np.inf
        ]
        for tokens, total in longer:
            if tokens[-1] == END or length == limit:
                seen = weights[list(tokens[:-1])]
                missed = reference.coverage_penalty(np.maximum(seen, 1e-300), strength)
                found.append((total / length**penalty + missed, tokens[1:]))
        live = [h for h in longer if h[0][-1] != END]
    return sorted(found, reverse=True)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("penalty, strength", [(0.0, 0.5), (1.0, 0.2), (1.0, 0.0)])
def test_enough_beams_with_a_coverage_penalty_find_what_trying_everything_finds(penalty, strength):
    table, (weights, coverage) = tables(3, batch=3, size=6), sources(5, 3, 6, padding=2)
    state = {"table": table, "weights": weights.astype("float32"), "coverage": coverage}
    found = decoding.beam_search(
        looking,
        state,
        3,
        4,
        num_beams=121,
        num_results=121,
        length_penalty=penalty,
        rules=[rules.CoveragePenalty(strength)],
        **IDS,
    )
    for row in range(3):
        # Padding is no part of the source.
        wanted = with_coverage(table[row], weights[row][:, :3], 4, penalty, strength)
        assert_same(found, wanted, row)
        if strength:
            free = [tokens for _, tokens in with_coverage(table[row], weights[row], 4, penalty, 0)]
            assert free != [tokens for _, tokens in wanted]


def few_with_coverage(table, weights, limit, penalty, strength, num_beams):
    """Beam search in which a beam gets its coverage penalty when it ends."""
    beams = [((BEGIN,), 0.0, 0.0)]

    def score(beam):
        return beam[1] / max(len(beam[0]) - 1, 1) ** penalty + beam[2]

    for length in range(1, limit + 1):
        candidates = []
        for beam in beams:
            tokens, total, _ = beam
            if tokens[-1] == END:
                candidates.append(beam)
                continue
            seen = np.maximum(weights[list(tokens)], 1e-300)
            missed = reference.coverage_penalty(seen, strength)
            candidates += [
                ((*tokens, t), total + gain, missed if t == END or length == limit else 0.0)
                for t, gain in enumerate(log_probabilities(table, tokens))
                if gain > -np.inf
            ]
        beams = sorted(candidates, key=score, reverse=True)[:num_beams]
    return [(score(beam), beam[0][1:]) for beam in beams]


@pytest.mark.slow
def test_open_beams_are_compared_without_what_they_have_yet_to_look_at():
    table, (weights, coverage) = tables(9, batch=23, size=7, scale=2.0), sources(5, 23, 7, 0)
    state = {"table": table, "weights": weights.astype("float32"), "coverage": coverage}
    options = {"num_beams": 4, "num_results": 4, **IDS}
    own = [rules.CoveragePenalty(0.4)]
    found = decoding.beam_search(looking, state, 23, 6, rules=own, **options)
    for row in range(23):
        assert_same(found, few_with_coverage(table[row], weights[row], 6, 1.0, 0.4, 4), row)


@pytest.mark.slow
def test_a_few_beams_with_a_coverage_penalty_stop_no_sooner_than_they_may():
    table, (weights, coverage) = tables(9, batch=23, size=6, scale=4.0), sources(5, 23, 6, 0)
    state = {"table": table, "weights": weights.astype("float32"), "coverage": coverage}
    own = [rules.CoveragePenalty(0.4)]
    search = functools.partial(decoding.beam_search, looking, state, 23, 6, num_beams=7, **IDS)
    one, all_of_them = (search(num_results=n, rules=own) for n in (1, 7))
    # To be sure of seven a search goes on to the end.
    np.testing.assert_array_equal(one.tokens[:, 0], all_of_them.tokens[:, 0])
    np.testing.assert_allclose(one.scores[:, 0], all_of_them.scores[:, 0], rtol=1e-5)


@pytest.mark.slow
def test_a_source_token_that_nothing_looks_at_makes_no_score_infinite():
    table = tables(3, batch=1, size=6)
    weights = np.eye(S)[np.zeros((1, 6), int)].astype("float32")
    state = {"table": table, "weights": weights, "coverage": np.zeros((1, S), "float32")}
    found = decoding.beam_search(looking, state, 1, 3, rules=[rules.CoveragePenalty(1.0)], **IDS)
    assert np.isfinite(numpy(found.scores)).all()


def test_a_state_without_coverage_is_refused():
    message = "step: `state` must have the entry 'coverage' for CoveragePenalty"
    with pytest.raises(ValueError, match=message):
        decoding.beam_search(
            trigram, tables(0, 1, 5), 1, 3, rules=[rules.CoveragePenalty(0.2)], **IDS
        )


def spread(model):
    """The model with larger matrices, whose attention looks at some tokens more than at others."""
    rng = np.random.default_rng(7)
    model.set_weights([rng.normal(size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])
    return model


SOURCE = np.array([[4, 5, 6, 7, 8], [9, 10, 4, 0, 0]])
TARGET = np.array([[2, 4, 5, 6], [2, 7, 8, 9]])


def stepped(model, state):
    for position in range(4):
        _, state = model.step(as_tensor(TARGET), position, state)
    return numpy(state["coverage"])


@pytest.mark.slow
def test_a_transformer_keeps_the_weights_of_its_last_block():
    model = tfattn.Transformer(11, num_layers=2, width=10, num_heads=2, hidden_dim=14)
    model((SOURCE, TARGET))
    coverage = stepped(spread(model), model.encode(SOURCE, max_length=4, coverage=True))
    with tfattn.path("dense"):
        weights = tfattn.attention_weights(model, (SOURCE, TARGET))
    *_, last = (w for path, w in weights.items() if "cross" in path)
    wanted = numpy(last).mean(axis=1).sum(axis=1) + (SOURCE == 0)
    np.testing.assert_allclose(coverage, wanted, rtol=1e-4)
    assert np.ptp(coverage[0]) > 0.3


@pytest.mark.slow
def test_a_recurrent_model_keeps_its_alignments():
    model = tfattn.BahdanauSeq2Seq(11, width=10, units=14)
    model((SOURCE, TARGET))
    state = spread(model).encode(SOURCE, max_length=4, alignments=True, coverage=True)
    for position in range(4):
        _, state = model.step(as_tensor(TARGET), position, state)
    wanted = numpy(state["alignments"]).sum(axis=1) + (SOURCE == 0)
    np.testing.assert_allclose(state["coverage"], wanted, rtol=1e-5)


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_asking_for_coverage_changes_no_score(kind):
    model = {
        "transformer": lambda: tfattn.Transformer(11, num_layers=1, width=8, num_heads=2),
        "recurrent": lambda: tfattn.BahdanauSeq2Seq(11, width=8, units=8),
    }[kind]()
    model((SOURCE, TARGET))
    spread(model)
    with_it, without = (
        model.step(as_tensor(TARGET), 0, model.encode(SOURCE, max_length=4, coverage=asked))[0]
        for asked in (True, False)
    )
    np.testing.assert_allclose(with_it, without, atol=1e-5)


def test_coverage_of_a_transformer_needs_caches():
    model = tfattn.Transformer(11, num_layers=1, width=8, num_heads=2)
    with pytest.raises(ValueError, match="^Transformer: `max_length` must be a positive integer"):
        model.encode(SOURCE, coverage=True)


# Groups.


def diverse_in_python(table, limit, penalty, num_beams, groups, strength):
    """(score, tokens) of the beams of all groups, the best first."""
    each = num_beams // groups
    beams = [[((BEGIN,), 0.0, 0)] for _ in range(groups)]

    def score(total, length):
        return total / max(length, 1) ** penalty

    for _ in range(limit):
        used = np.zeros(table.shape[-1])
        for number in range(groups):
            candidates = []
            for tokens, total, length in beams[number]:
                if tokens[-1] == END:
                    candidates.append((score(total, length), (tokens, total, length), None))
                    continue
                for token, gain in enumerate(log_probabilities(table, tokens)):
                    if gain > -np.inf:
                        rank = score(total + gain - strength * used[token], length + 1)
                        beam = (*tokens, token), total + gain, length + 1
                        candidates.append((rank, beam, token))
            best = sorted(candidates, key=lambda one: one[0], reverse=True)[:each]
            beams[number] = [beam for _, beam, _ in best]
            for _, _, token in best:
                if token is not None:
                    used[token] += 1
    found = [(score(total, length), tokens[1:]) for b in beams for tokens, total, length in b]
    return sorted(found, reverse=True)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("strength", [0.0, 0.7, 3.0])
def test_groups_find_what_groups_in_python_find(groups, strength):
    table, limits = tables(11, batch=7, size=7), [6, 3, 7, 5, 6, 4, 1]
    options = {"num_beams": 6, "num_results": 6, "length_penalty": 0.6, **IDS}
    diverse = decoding.DiverseBeams(groups, strength)
    found = decoding.beam_search(trigram, table, 7, limits, diverse=diverse, **options)
    for row, limit in enumerate(limits):
        wanted = diverse_in_python(table[row], limit, 0.6, 6, groups, strength)
        scores, beams = numpy(found.scores[row]), numpy(found.tokens[row])
        there = scores > -np.inf
        np.testing.assert_allclose(scores[there], [s for s, _ in wanted], rtol=1e-5)
        got = [tuple(t for t in beam if t != PAD) for beam in beams[there].tolist()]
        assert sorted(got) == sorted(tokens for _, tokens in wanted)


@pytest.mark.slow
def test_one_group_is_plain_beam_search_and_more_differ():
    table = tables(13, batch=7, size=9)
    options = {"num_beams": 4, "num_results": 4, **IDS}
    plain = decoding.beam_search(trigram, table, 7, 6, **options)
    one = decoding.beam_search(
        trigram, table, 7, 6, diverse=decoding.DiverseBeams(1, 2.0), **options
    )
    np.testing.assert_array_equal(plain.tokens, one.tokens)
    four = decoding.beam_search(
        trigram, table, 7, 6, diverse=decoding.DiverseBeams(4, 9.0), **options
    )
    first = numpy(four.tokens)[:, :, 0]
    assert all(len(set(row)) == 4 for row in first.tolist())
    assert not all(len(set(row)) == 4 for row in numpy(plain.tokens)[:, :, 0].tolist())


@pytest.mark.slow
def test_groups_keep_rules_too():
    own = [rules.NoRepeatNgrams(1), rules.MinLength(3), rules.RequiredTokens([5])]
    found = decoding.beam_search(
        trigram,
        tables(17, batch=7, size=9),
        7,
        5,
        num_beams=6,
        num_results=6,
        rules=own,
        diverse=decoding.DiverseBeams(3),
        **IDS,
    )
    for tokens in numpy(found.tokens)[numpy(found.scores) > -np.inf].tolist():
        words = [token for token in tokens if token > END]
        assert len(set(words)) == len(words) >= 3 and 5 in words


@needs_compiling
def test_another_strength_is_no_new_trace():
    calls, table = [], tables(0, 3, 7)

    def step(tokens, position, table):
        calls.append(1)
        return trigram(tokens, position, table)

    for strength in (0.0, 0.5, 1):
        diverse = decoding.DiverseBeams(2, strength)
        decoding.beam_search(step, table, 3, 5, diverse=diverse, **IDS)
    assert len(calls) == CALLS_A_TRACE


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: decoding.DiverseBeams(0), "DiverseBeams: `groups` must be a positive integer"),
        (lambda: decoding.DiverseBeams(2, -1), "DiverseBeams: `strength` must be a finite number"),
        (lambda: decoding.DiverseBeams(3), "beam_search: `diverse` must divide `num_beams`=4"),
        (lambda: 2, "beam_search: `diverse` must be a DiverseBeams, or None"),
    ],
)
def test_groups_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        decoding.beam_search(trigram, tables(0, 1, 5), 1, 3, diverse=make(), **IDS)


# The trace.


def told(trace, row):
    """A trace of one sentence by NumPy."""
    return type(trace)(*(numpy(array)[row] for array in trace))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", ["plain", "groups", "required", "forbidden"])
def test_a_trace_tells_how_the_results_came_about(kind):
    options = {
        "plain": {},
        "groups": {"diverse": decoding.DiverseBeams(2, 1.0)},
        "required": {"rules": [rules.RequiredTokens([5, [3, 4]])]},
        "forbidden": {"rules": [rules.ForbiddenTokens([3, 4])]},
    }[kind]
    table = tables(19, batch=7, size=7, scale=3.0)
    options = {"num_beams": 4, "num_results": 4, **options, **IDS}
    found = decoding.beam_search(trigram, table, 7, 6, return_trace=True, **options)
    plain = decoding.beam_search(trigram, table, 7, 6, **options)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-5)
    assert plain.trace is None
    for row in range(7):
        trace = told(found.trace, row)
        steps = (trace.scores > -np.inf).any(axis=1).sum()
        assert 0 < steps <= 6 and (trace.scores[steps:] == -np.inf).all()
        # From a last beam back to the begin.
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
        # What is kept are the beams, and each has a parent among those before.
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
            if kind in ("plain", "forbidden"):
                rest = trace.candidate_scores[step][~kept]
                assert rest.max(initial=-np.inf) <= trace.scores[step][alive].min()


@pytest.mark.slow
def test_a_trace_ends_for_each_sentence_where_the_sentence_is_done():
    table = tables(23, batch=5, size=6, scale=3.0)
    options = {"num_beams": 3, "return_trace": True, **IDS}
    together = decoding.beam_search(trigram, table, 5, [2, 9, 5, 7, 3], **options)
    steps = (numpy(together.trace.scores) > -np.inf).any(axis=2).sum(axis=1)
    assert len(set(steps.tolist())) > 2 and steps[0] <= 2
    for row, limit in enumerate([2, 9, 5, 7, 3]):
        alone = decoding.beam_search(trigram, table[row : row + 1], 1, [limit], **options)
        for mine, theirs in zip(together.trace, alone.trace, strict=True):
            cut = numpy(mine)[row, : steps[row]]
            np.testing.assert_allclose(numpy(theirs)[0, : steps[row]], cut, rtol=1e-5)


def test_a_trace_of_beams_is_what_beams_in_python_do():
    table = tables(29, batch=1, size=6)
    found = decoding.beam_search(
        trigram, table, 1, 4, num_beams=3, length_penalty=0.0, return_trace=True, **IDS
    )
    trace = told(found.trace, 0)
    for step in range((trace.scores > -np.inf).any(axis=1).sum()):
        wanted = beams_in_python(table[0], step + 1, 0.0, 3)
        np.testing.assert_allclose(trace.scores[step], [score for score, _ in wanted], rtol=1e-5)


def test_return_trace_must_be_a_boolean():
    with pytest.raises(ValueError, match="^beam_search: `return_trace` must be True or False"):
        decoding.beam_search(trigram, tables(0, 1, 5), 1, 3, return_trace=1, **IDS)
