"""Figures of the tutorials: crowded heatmaps, masks, flow and heads."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from tests.plot.test_figures import WORDS, images, texts, weights, words_shown
from tfattn import masks, plot
from tfattn.plot import canvas


def lightness(color):
    """How light the eye finds a color, 0 to 1: what is left of it in gray."""
    return np.dot(to_rgb(color), (0.299, 0.587, 0.114))


def test_heatmaps_labels_without_room_are_left_out_evenly():
    labels = [f"w{number}" for number in range(60)]
    for size, most in ((2.0, 11), (20.0, 60)):
        axes = Figure(figsize=(size, size)).add_subplot()
        plot.heatmaps(np.eye(60), labels, labels, ax=axes)
        places = axes.get_xticks()
        assert len(places) <= most and len(set(np.diff(places))) == 1
        assert texts(axes.get_xticklabels()) == [f"w{place:.0f}" for place in places]


# Masks.


def shown(figure):
    return [image.get_array().data.astype(bool) for image in images(figure)]


@pytest.mark.slow
def test_mask_pictures_show_every_pair_of_objects_and_arrays():
    rules = [masks.causal(), masks.window(2), masks.causal() & masks.window(2)]
    causal, window, both = shown(plot.mask_pictures(rules, 7))
    far = np.abs(np.subtract.outer(range(7), range(7)))
    np.testing.assert_array_equal(causal, np.tri(7, dtype=bool))
    np.testing.assert_array_equal(window, far < 2)
    np.testing.assert_array_equal(both, causal & window)
    # one for each row of a batch, and each head
    pictures = shown(plot.mask_pictures(masks.padding(np.array([2, 5])), 3, 7))
    np.testing.assert_array_equal(pictures, np.arange(7) < [[[2]] * 3, [[5]] * 3])
    assert len(shown(plot.mask_pictures(np.ones((2, 3, 5, 7), bool)))) == 6
    # an array has its own size, or the one it broadcasts to
    array = np.tri(5, 7, dtype=bool)
    for mask in (array, [array], array.tolist()):
        np.testing.assert_array_equal(shown(plot.mask_pictures(mask)), [array])
    row = np.array([[True, False, True]])
    np.testing.assert_array_equal(shown(plot.mask_pictures([row], 2, 3)), [[row[0], row[0]]])


def test_mask_pictures_allowed_pairs_are_darker_in_gray():
    figure = plot.mask_pictures(np.eye(2, dtype=bool), titles=["own"])
    (image,) = images(figure)
    light, dark = (lightness(image.cmap(image.norm(value))[:3]) for value in (0, 1))
    assert light - dark > 0.4
    (legend,) = figure.legends
    handles = dict(zip(texts(legend.get_texts()), legend.get_patches(), strict=True))
    assert lightness(handles["may attend"].get_facecolor()[:3]) == pytest.approx(dark)
    assert lightness(handles["may not"].get_facecolor()[:3]) == pytest.approx(light)


# Flow.


def lines(figure):
    """(ends, widths, lightness) of the lines of a flow, the lowest first."""
    (drawn,) = figure.axes[0].collections
    greys = [lightness(color[:3]) for color in drawn.get_colors()]
    return np.array(drawn.get_segments()), drawn.get_linewidths(), greys


def test_flow_line_joins_a_query_to_its_key():
    figure = plot.flow([[0.0, 0.3], [0.7, 0.0], [0.0, 0.04]], ["a", "b", "c"], ["d", "e"])
    ends, _, _ = lines(figure)
    # Three words on the left at 0, 1, 2; two on the right, spread over the same height.
    np.testing.assert_allclose(ends, [[[0, 0], [1, 1.75]], [[0, 1], [1, 0.25]]])
    words = {text.get_text(): text.xy for text in figure.axes[0].texts}
    assert words == {"a": (0, 0), "b": (0, 1), "c": (0, 2), "d": (1, 0.25), "e": (1, 1.75)}
    assert texts(figure.axes[0].get_xticklabels()) == ["Queries", "Keys"]


def test_flow_more_weight_is_wider_darker_and_on_top():
    _, widths, greys = lines(plot.flow([[0.6, 0.1], [0.3, 1.0]], ["a", "b"], ["c", "d"]))
    assert np.all(np.diff(widths) > 0.3)
    assert np.all(np.diff(greys) < -0.02) and greys[0] < 0.9  # seen on white


def test_flow_below_the_threshold_has_no_line():
    weights = [[0.0, 0.1, 0.3], [np.nan, 0.5, 0.0]]
    for threshold, count in ((0.0, 3), (0.2, 2), (0.5, 1), (2.0, 0)):
        ends, _, _ = lines(plot.flow(weights, ["a", "b"], ["c", "d", "e"], threshold=threshold))
        assert len(ends) == count


# Heads.


@pytest.mark.slow
def test_head_grid_has_a_row_a_layer_and_a_column_a_head():
    array = weights(2, 3, 2, 5)
    figure = plot.head_grid(array, ["un", "chat"], WORDS, title="encoder")
    shown = [image.get_array() for image in images(figure)]
    np.testing.assert_array_equal(shown, array.reshape(6, 2, 5))
    heads, names = figure.axes[:3], [axes.get_ylabel() for axes in figure.axes[:6:3]]
    assert [axes.get_title() for axes in heads] == ["head 0", "head 1", "head 2"]
    assert names == ["layer 0", "layer 1"]
    assert {image.get_clim() for image in images(figure)} == {(0.0, array.max())}
    assert {"Keys", "Queries", "encoder"} <= set(texts(figure.texts))
    figure.draw_without_rendering()  # words stand at the outer edges
    left = [bool(words_shown(axes.yaxis)) for axes in figure.axes[:6]]
    below = [bool(words_shown(axes.xaxis)) for axes in figure.axes[:6]]
    assert left == [True, False, False] * 2 and below == [False] * 3 + [True] * 3


@pytest.mark.slow
def test_head_grid_of_layers_with_other_numbers_of_heads_leaves_gaps():
    figure = plot.head_grid({"a": weights(3, 5, 7), "b": weights(2, 5, 7)})
    assert [axes.axison for axes in figure.axes[:6]] == [True] * 5 + [False]
    figure.draw_without_rendering()
    # The third head has nothing beneath it.
    below = [bool(words_shown(axes.xaxis)) for axes in figure.axes[:5]]
    assert below == [False, False, True, True, True]


@pytest.mark.parametrize(
    "paths, names",
    [
        (["model/encoder/attention"], ["attention"]),
        (["m/encoder/block_0/attention", "m/encoder/block_1/attention"], ["block_0", "block_1"]),
        (["attention", "attention:1"], ["attention", "attention:1"]),
        (["a/b", "a/b/c"], ["b", "b/c"]),
        (["a/b", "c/a/b"], ["a", "c/a"]),
    ],
)
def test_head_grid_names_a_layer_by_what_its_path_alone_has(paths, names):
    figure = plot.head_grid({path: weights(1, 5, 7) for path in paths})
    assert [axes.get_ylabel() for axes in figure.axes[: len(paths)]] == names


# Sixty tokens, and what is left of colors.


def overlaps(boxes, pixels=4.0):
    """Pairs of boxes that share more than so many pixels."""
    pairs = []
    for first, second in itertools.combinations(boxes, 2):
        width = min(first.x1, second.x1) - max(first.x0, second.x0)
        height = min(first.y1, second.y1) - max(first.y0, second.y0)
        if max(width, 0.0) * max(height, 0.0) > pixels:
            pairs.append((first, second))
    return pairs


SIXTY = [f"extraordinary{number}" for number in range(60)]
CROWDED = {
    "heatmaps": lambda: plot.heatmaps(np.eye(60), SIXTY, SIXTY),
    "grid": lambda: plot.heatmaps(
        weights(8, 12, 12), SIXTY[:12], SIXTY[:12], [f"head {head}" for head in range(8)]
    ),
    "head_grid": lambda: plot.head_grid(np.eye(60)[None, None], SIXTY, SIXTY),
    "flow": lambda: plot.flow(np.eye(60), SIXTY, SIXTY),
    "mask_pictures": lambda: plot.mask_pictures([masks.causal()] * 5, 60, titles=["causal"] * 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CROWDED)
def test_figure_of_sixty_long_words_shows_some_and_none_overlap(name):
    figure = CROWDED[name]()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    names = [*figure.legends, *(text for text in figure.texts if text.get_text())]
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    boxes += [artist.get_window_extent() for artist in names] if name == "mask_pictures" else []
    assert overlaps(boxes) == []
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
    if name != "mask_pictures":
        words = axes.texts if name == "flow" else axes.get_yticklabels()
        words = [word for word in words if word.get_text() in SIXTY]
        assert len(words) >= 12 and words[0].get_fontsize() >= 6
        assert overlaps([word.get_window_extent() for word in words], pixels=0.0) == []
    if name == "head_grid":  # each word stands at its own row
        assert len(words) <= 30
        assert texts(words) == [SIXTY[int(place)] for place in axes.get_yticks()]


def test_letters_count_a_chinese_character_as_two():
    assert canvas.letters("注意力 ab") == 9
