"""The demo of residuals and norms, run as a reader runs it."""

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow  # in which the demo is written

DEPTH = 24
# The share of a token's or a gradient's squared length that a fresh network of Glorot's weights
# passes on: the maps are D by 4 D, so a weight has variance 2 / (D + 4 D), and ReLU halves.
SHARE = 0.5 * 4 * (2 / 5) ** 2


def normalised(x, axis, real=None):
    """`x` less its mean, by its deviation; of the places that are real, where that is said."""
    known = x if real is None else x[real][None]
    mean, variance = known.mean(axis=axis, keepdims=True), known.var(axis=axis, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5)


@pytest.mark.slow
def test_only_batch_normalisation_moves_a_sentence_with_its_batch(story):
    numbers, variables, _ = story
    batch, padded, longer = (variables[name].astype("float64") for name in PLACES)
    real = [variables[name] for name in ("real", "still_real", "longer_real")]
    assert numbers["moved"]["layer norm"] == pytest.approx([0.0, 0.0], abs=1e-6)
    for name, masks in (("batch norm", [None] * 3), ("batch norm, masked", real)):
        before, *after = (
            normalised(x, (0, 1), mask)[0, :2]
            for x, mask in zip((batch, padded, longer), masks, strict=True)
        )
        expected = [np.abs(x - before).max() for x in after]
        np.testing.assert_allclose(numbers["moved"][name], expected, rtol=1e-4, atol=1e-5)
    by_padding, by_words = numbers["moved"]["batch norm"]
    assert min(by_padding, by_words, numbers["moved"]["batch norm, masked"][1]) > 0.1


PLACES = ("batch", "padded", "longer")


@pytest.mark.slow
def test_the_pictures_show_the_two_norms(story):
    variables = story[1]
    batch = variables["batch"].astype("float64")
    for name, axis in (("layer norm", 2), ("batch norm", (0, 1))):
        expected = normalised(batch, axis)
        np.testing.assert_allclose(variables["normalised"][name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow(keep=1)
def test_the_gradients_are_as_long_as_the_weights_at_the_start_have_them(story):
    gradients = story[0]["gradients"]
    # 48 random matrices, each as wide as 128 or more: a squared length strays by about a fifth
    within = {"rel": 0.35}
    assert gradients["plain"] == pytest.approx(SHARE ** (DEPTH / 2), **within)
    assert gradients["residual"] == pytest.approx((1 + SHARE) ** (DEPTH / 2), **within)
    # the stream grows below a pre-norm, so that each layer weighs less than the one before
    pre_norm = np.sqrt(1 + SHARE * DEPTH)
    assert gradients["norm, residual (pre-norm)"] == pytest.approx(pre_norm, **within)
    # and a norm after the sum divides by what the sum has multiplied
    assert gradients["residual, norm (post-norm)"] == pytest.approx(1.0, **within)
    assert 0.5 < gradients["norm"] < 2.0


@pytest.mark.slow
def test_the_curves_run_from_the_bottom_to_the_top(story):
    variables = story[1]
    for lengths in variables["gradients"].values():
        assert len(lengths) == DEPTH + 1 and lengths[-1] == 1.0
    assert (np.diff(variables["gradients"]["plain"]) > 0).all()


@pytest.mark.slow
def test_tokens_grow_alike_without_residuals(story):
    alike = story[0]["alike"]
    plain, residual = 0.0, 0.0
    for _ in range(DEPTH):  # Cho, Saul 2009: the cosine after a wide layer of ReLUs
        plain = relu_cosine(plain)
        residual = (residual + SHARE * relu_cosine(residual)) / (1 + SHARE)
    assert alike["plain"] == pytest.approx(plain, abs=0.1)
    assert alike["norm"] == pytest.approx(plain, abs=0.1)
    assert alike["residual"] == pytest.approx(residual, abs=0.15)
    assert alike["norm, residual (pre-norm)"] < alike["residual"] < alike["plain"]


def relu_cosine(cosine):
    angle = np.arccos(cosine)
    return (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi


@pytest.mark.slow
def test_the_layer_is_post_norm_by_hand(story):
    assert story[0]["add_norm_difference"] < 1e-5


@pytest.mark.slow
def test_the_figures_are_in_the_folder(story):
    figures = story[2]
    names = sorted(path.name for path in figures.iterdir())
    assert names == ["alike.png", "gradients.png", "moved.png", "norms.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in figures.iterdir())
