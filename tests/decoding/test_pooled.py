"""Beam search with a pool: what ends waits, what is open goes on, and the limit ends all."""

import keras
import numpy as np
import pytest

import tfattn
from tfattn.decoding import PooledBeamSearch

BEGIN, END = 2, 3


def step(tokens, position, state):
    """A step whose scores depend on the last token and its position: a state `(B, L, V, V)`."""
    last = keras.ops.take(tokens, position, axis=1)
    scores = keras.ops.take(state, position, axis=1)  # (B, V, V)
    return keras.ops.take_along_axis(scores, last[:, None, None], axis=1)[:, 0], state


def logits_of(*seeds):
    """`(B, 6, 7, 7)`, a sentence for each seed."""
    rows = [np.random.default_rng(seed).normal(size=(6, 7, 7)) for seed in seeds]
    return 2 * np.array(rows, "float32")


def expected(logits, num_beams, length_penalty, early_stopping):
    """The pool of one sentence, [(score, tokens)], by lists."""
    length = len(logits)
    beams, pool = [(0.0, [BEGIN])], []
    for position in range(length):
        candidates = []
        for total, tokens in beams:
            scores = logits[position, tokens[-1]]
            scores = scores - np.log(np.exp(scores).sum())
            if position == length - 1:
                candidates.append((total, [*tokens, END]))
                continue
            ids = range(1, len(scores))  # without padding
            candidates += [(total + scores[token], [*tokens, token]) for token in ids]
        candidates = sorted(candidates, reverse=True)[: 2 * num_beams]
        divisor = (position + 1) ** length_penalty
        ended = [each for each in candidates[:num_beams] if each[1][-1] == END]
        pool += [(total / divisor, tokens[1:]) for total, tokens in ended]
        pool = sorted(pool, reverse=True)[:num_beams]
        beams = [each for each in candidates if each[1][-1] != END][:num_beams]
        full = len(pool) == num_beams
        if not beams or full and (early_stopping or beams[0][0] / divisor <= pool[-1][0]):
            break
    return pool


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 2.0])
def test_it_finds_what_a_search_by_lists_finds(length_penalty, early_stopping):
    search, logits = PooledBeamSearch(3, length_penalty, early_stopping), logits_of(*range(40))
    found = search(step, logits, batch_size=40, max_length=6)
    for row in range(40):
        wanted = expected(logits[row], 3, length_penalty, early_stopping)
        tokens, scores = np.asarray(found.tokens)[row], np.asarray(found.scores)[row]
        rows = [each[: each.argmin() if 0 in each else None].tolist() for each in tokens]
        assert rows[: len(wanted)] == [each for _, each in wanted]
        np.testing.assert_allclose(scores[: len(wanted)], [s for s, _ in wanted], atol=1e-5)
        assert np.isneginf(scores[len(wanted) :]).all()


def test_rows_have_limits_of_their_own():
    search, logits = PooledBeamSearch(2), logits_of(3, 3)
    both = search(step, logits, batch_size=2, max_length=[3, 6])
    for row, length in enumerate((3, 6)):
        alone = search(step, logits[:1], batch_size=1, max_length=length)
        np.testing.assert_array_equal(both.tokens[row, :, :length], alone.tokens[0])
        np.testing.assert_array_equal(both.tokens[row, :, length:], 0)


def test_more_beams_than_candidates_leave_places_empty():
    found = PooledBeamSearch(6)(step, logits_of(1), batch_size=1, max_length=1)
    np.testing.assert_array_equal(found.tokens[0, :, 0], [END, 0, 0, 0, 0, 0])
    assert np.isneginf(np.asarray(found.scores)[0, 1:]).all()


def test_a_stream_gives_the_tokens_of_a_call():
    search, logits = PooledBeamSearch(3), logits_of(5)
    row = np.asarray(search(step, logits, batch_size=1, max_length=6).tokens)[0, 0]
    assert list(search.stream(step, logits, max_length=6)) == row[row != 0].tolist()


def test_rules_change_scores_and_those_for_beam_search_alone_are_refused():
    logits = logits_of(2)
    rules = [tfattn.rules.ForbiddenTokens([4, 5]), tfattn.rules.MinLength(3)]
    found = np.asarray(PooledBeamSearch(2, rules=rules)(step, logits, 1, 6).tokens)
    assert not np.isin(found, [4, 5]).any() and (found[..., :3] != END).all()
    for rule in (tfattn.rules.CoveragePenalty(0.2), tfattn.rules.RequiredTokens([[5]])):
        with pytest.raises(ValueError, match="PooledBeamSearch: `rules` must hold no rule for"):
            PooledBeamSearch(rules=[rule])
    every = [tfattn.rules.ForbiddenTokens(range(7))]
    with pytest.raises(ValueError, match="leave each row a token to write"):
        PooledBeamSearch(rules=every)(step, logits, 1, 6)


def test_what_a_pool_does_not_give_is_refused_at_the_call():
    search, logits = PooledBeamSearch(2), logits_of(5)
    with pytest.raises(ValueError, match="PooledBeamSearch: `return_state` must be False"):
        search(step, logits, 1, 6, return_state=True)
    with pytest.raises(ValueError, match="PooledBeamSearch: `steps` must be a positive integer"):
        search.stream(step, logits, 6, steps=-3)


def test_it_comes_back_from_its_config():
    search = PooledBeamSearch(3, 0.5, True, rules=[tfattn.rules.MinLength(2)])
    back = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(search))
    assert repr(back) == repr(search)
