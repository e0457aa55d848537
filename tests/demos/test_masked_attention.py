"""The demo of masks, run as a reader runs it."""

import numpy as np
import pytest


@pytest.mark.slow(keep=1)
def test_nothing_leaks_from_a_later_word(story):
    numbers, variables, _ = story
    assert numbers["leak"] == 0.0
    assert (variables["causal"][5:] > 0).all()  # the word itself and those after it do move
    assert numbers["moved_without_mask"] > 1e-3
    assert (variables["without"] > 1e-3).all()


@pytest.mark.slow
def test_the_triangle_is_the_softmax_of_what_each_query_may_see(story):
    tokens = story[1]["tokens"][0].astype("float64")
    random = np.random.default_rng(0).normal(size=(8, 16))
    np.testing.assert_allclose(tokens, random, rtol=1e-6)
    powers = np.exp(tokens @ tokens.T / 4.0) * np.tri(8)
    expected = powers / powers.sum(axis=1, keepdims=True) @ tokens
    layer = story[1]["attention"]
    output = layer(query=story[1]["tokens"], value=story[1]["tokens"], use_causal_mask=True)
    np.testing.assert_allclose(output[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_masks_let_in_as_many_pairs_as_their_formulas_say(story):
    t, s = np.arange(8)[:, None], np.arange(8)
    text = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    causal, window, prefix = s <= t, np.abs(s - t) < 3, np.broadcast_to(s < 3, (8, 8))
    segments = text[:, None] == text
    assert story[0]["pairs"] == {
        "causal()": causal.sum(),
        "window(3)": window.sum(),
        "prefix(3)": prefix.sum(),
        "segments(...)": segments.sum(),
        "causal() & window(3)": (causal & window).sum(),
        "causal() | prefix(3)": (causal | prefix).sum(),
        "causal() & segments(...)": (causal & segments).sum(),
        "~window(3)": (~window).sum(),
        "window(4) & strided(2)": ((np.abs(s - t) < 4) & ((s - t) % 2 == 0)).sum(),
        "chunks(4)": (s // 4 == t // 4).sum(),
        "chunks(4) | chunk_ends(4)": ((s // 4 == t // 4) | (s % 4 == 3)).sum(),
        "blocks(plan, 2)": ((s // 2 == t // 2) | (s < 2)).sum(),
    }


@pytest.mark.slow
def test_a_query_that_sees_nothing_pools_to_zero(story):
    assert story[0]["sees_nothing"] == 0.0


@pytest.mark.slow
def test_nan_under_a_mask_does_not_get_out(story):
    numbers, variables, _ = story
    assert numbers["lost_to_nan"] == {"by hand": 8 * 16, "masked": 0}
    np.testing.assert_allclose(variables["guarded"], variables["short"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_figures_are_in_the_folder(story):
    figures = story[2]
    names = sorted(path.name for path in figures.iterdir())
    assert names == ["masks.png", "moved.png", "padding.png", "triangle.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in figures.iterdir())
