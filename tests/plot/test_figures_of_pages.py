"""Figures of the tutorials: cells at numbers, curves, bars, masks, positions, flow and heads."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from tests.plot.test_figures import WORDS, X, images, overlaps, texts, weights, words_shown
from tfattn import masks, plot
from tfattn.plot import canvas


def lightness(color):
    """How light the eye finds a color, 0 to 1: what is left of it in gray."""
    return np.dot(to_rgb(color), (0.299, 0.587, 0.114))


# Heatmaps at numbers.


def test_with_values_cells_lie_half_way_around_their_numbers():
    x = np.array([0.0, 1.0, 3.0])
    mesh = plot.heatmaps(weights(2, 3), row_values=[5, 7], column_values=x).axes[0].collections[0]
    corners = mesh.get_coordinates()
    np.testing.assert_array_equal(corners[0, :, 0], [-0.5, 0.5, 2.0, 4.0])
    np.testing.assert_array_equal(corners[:, 0, 1], [4.0, 6.0, 8.0])
    np.testing.assert_array_equal(mesh.get_array(), weights(2, 3))


def test_rows_with_values_increase_upwards_and_others_downwards():
    def upwards(**values):
        bottom, top = plot.heatmaps(weights(2, 3), **values).axes[0].get_ylim()
        return bottom < top

    assert upwards(row_values=[0, 1]) and upwards(row_values=[0, 1], column_values=[0, 1, 2])
    assert not upwards() and not upwards(column_values=[0, 1, 2])


def test_numbers_and_words_stand_at_the_values_and_a_single_one_is_a_cell_of_width_1():
    values = {"row_values": [0.5, 2.5], "column_values": [0, 10, 30]}
    words = ["a", "b", "c"]
    axes = plot.heatmaps(np.zeros((2, 3)), None, words, number_format=".0f", **values).axes[0]
    places = [text.get_position() for text in axes.texts]
    assert places == [(0, 0.5), (10, 0.5), (30, 0.5), (0, 2.5), (10, 2.5), (30, 2.5)]
    assert list(axes.get_xticks()) == [0, 10, 30] and texts(axes.get_xticklabels()) == words
    axes = plot.heatmaps([[1.0]], row_values=[3], column_values=[7]).axes[0]
    assert axes.get_xlim() == (6.5, 7.5) and axes.get_ylim() == (2.5, 3.5)


@pytest.mark.parametrize("size, words", [((2.0, 2.0), 11), ((20.0, 20.0), 60)])
def test_words_that_small_axes_have_no_room_for_are_left_out_evenly(size, words):
    labels = [f"w{number}" for number in range(60)]
    axes = Figure(figsize=size).add_subplot()
    plot.heatmaps(np.eye(60), labels, labels, ax=axes)
    places = axes.get_xticks()
    assert len(places) <= words and len(set(np.diff(places))) == 1
    assert texts(axes.get_xticklabels()) == [f"w{place:.0f}" for place in places]


# Curves.


def ticks(x, y, **logs):
    axes = plot.curves(x, y, "x", "y", **logs).axes[0]
    axes.figure.draw_without_rendering()
    return texts(axes.get_xticklabels()), texts(axes.get_yticklabels())


def test_logarithmic_axes_have_plain_numbers_and_over_many_decades_powers_of_ten():
    along, up = ticks([16, 32, 64, 128], [2, 3, 5, 9], log_x=True, log_y=True)
    assert along == ["16", "32", "64", "128"] and {"2", "5", "9"} <= set(up)
    along, _ = ticks(np.geomspace(0.05, 2, 40), np.arange(40), log_x=True)
    assert {"0.05", "0.1", "0.2", "0.5", "1", "2"} <= set(along)
    _, up = ticks([1, 2], [1e-6, 1e3], log_y=True)
    assert up and all("10^" in label for label in up)


def test_a_curve_beneath_another_is_wider():
    lines = plot.curves(X, {"a": X, "b": X + 7, "c": X}, "x", "y").axes[0].get_lines()
    below, apart, above = (line.get_linewidth() for line in lines)
    assert below > apart == above


def test_curves_differ_in_color_dash_and_marker():
    names = {f"curve {number}": X + number for number in range(6)}
    axes = plot.curves(X, names, "x", "y", "title").axes[0]
    lines = axes.get_lines()
    assert [line.get_label() for line in lines] == list(names)
    assert len({line.get_color() for line in lines}) == 6
    assert len({line.get_marker() for line in lines}) == 6
    assert len({str(line._dash_pattern) for line in lines}) == 6
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("x", "y", "title")
    assert texts(axes.get_legend().get_texts()) == list(names)


def test_each_curve_may_have_an_x_of_its_own():
    figure = plot.curves({"a": X, "b": [1, 2]}, {"a": X, "b": [3, 4]}, "x", "y")
    first, second = (line.get_xydata() for line in figure.axes[0].get_lines())
    np.testing.assert_array_equal(first, np.stack([X, X], axis=1))
    np.testing.assert_array_equal(second, [[1, 3], [2, 4]])


def test_axes_are_logarithmic_on_request():
    for x, y in itertools.product((False, True), repeat=2):
        axes = plot.curves(X + 1, X + 1, "x", "y", log_x=x, log_y=y).axes[0]
        assert (axes.get_xscale() == "log", axes.get_yscale() == "log") == (x, y)


def test_a_marked_x_is_a_dot_on_its_curve():
    series = {"line": X, "square": X**2}
    axes = plot.curves(X, series, "x", "y", marked={"square": 2.0, "line": 0.25}).axes[0]
    dots = [line.get_xydata() for line in axes.get_lines()[2:]]
    np.testing.assert_allclose(dots, [[[2.0, 4.0]], [[0.25, 0.25]]])
    assert texts(axes.texts) == ["2", "0.25"]
    axes = plot.curves(X, X, "x", "y", marked={"chosen": 2.0}).axes[0]  # words, on an only curve
    assert texts(axes.texts) == ["chosen"] and axes.get_legend() is None


@pytest.mark.slow
def test_a_legend_hides_no_curve_however_many_there_are():
    names = {f"curve {number}": X + number for number in range(9)}
    figure = plot.curves(X, names, "x", "y")
    figure.draw_without_rendering()
    legend = figure.axes[0].get_legend().get_window_extent()
    assert legend.x0 >= figure.axes[0].get_window_extent().x1 and legend.x1 <= figure.bbox.x1


# Bars.


def test_bars_are_as_tall_as_their_numbers_and_stand_side_by_side():
    axes = plot.bars(["a", "b"], {"one": [1, 2], "two": [3, -4]}, "x", "y").axes[0]
    assert [bar.get_height() for bar in axes.patches] == [1, 2, 3, -4]
    starts = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches)
    assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(starts))
    one, _, two, _ = axes.patches
    assert one.get_facecolor() != two.get_facecolor() and one.get_hatch() != two.get_hatch()
    assert texts(axes.get_legend().get_texts()) == ["one", "two"]


def test_numbers_stand_at_the_bars_on_request():
    axes = plot.bars(["a", "b"], [0.25, 0.75], "x", "y", "title", number_format=".2f").axes[0]
    assert texts(axes.texts) == ["0.25", "0.75"] and axes.get_title() == "title"
    assert axes.get_legend() is None
    axes = plot.bars(["a", "b"], [-1.5, -0.001], "x", "y", number_format=".1f").axes[0]
    assert texts(axes.texts) == ["\N{MINUS SIGN}1.5", "0.0"]


@pytest.mark.parametrize(
    "words, turned",
    [(["red", "blue"], 0), (["an extraordinary word"] * 3, 0), (["extraordinary " * 3] * 5, 60)],
)
def test_words_that_do_not_fit_below_bars_are_rotated(words, turned):
    axes = plot.bars(words, np.ones(len(words)), "x", "y").axes[0]
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {turned}


# Masks.


def shown(figure):
    return [image.get_array().data.astype(bool) for image in images(figure)]


def test_a_mask_object_is_evaluated_for_every_pair():
    rules = [masks.causal(), masks.window(2), masks.causal() & masks.window(2)]
    causal, window, both = shown(plot.mask_pictures(rules, 7))
    far = np.abs(np.subtract.outer(range(7), range(7)))
    np.testing.assert_array_equal(causal, np.tri(7, dtype=bool))
    np.testing.assert_array_equal(window, far < 2)
    np.testing.assert_array_equal(both, causal & window)


def test_a_mask_of_a_batch_or_of_heads_is_a_picture_for_each():
    pictures = shown(plot.mask_pictures(masks.padding(np.array([2, 5])), 3, 7))
    np.testing.assert_array_equal(pictures, np.arange(7) < [[[2]] * 3, [[5]] * 3])
    assert len(shown(plot.mask_pictures(np.ones((2, 3, 5, 7), bool)))) == 6


def test_an_array_has_its_own_size_or_broadcasts_to_the_given_size():
    array = np.tri(5, 7, dtype=bool)
    for mask in (array, [array], array.tolist()):
        np.testing.assert_array_equal(shown(plot.mask_pictures(mask)), [array])
    row = np.array([[True, False, True]])
    np.testing.assert_array_equal(shown(plot.mask_pictures([row], 2, 3)), [[row[0], row[0]]])


def test_allowed_pairs_are_darker_in_gray_too():
    figure = plot.mask_pictures(np.eye(2, dtype=bool), titles=["own"])
    (image,) = images(figure)
    light, dark = (lightness(image.cmap(image.norm(value))[:3]) for value in (0, 1))
    assert light - dark > 0.4
    (legend,) = figure.legends
    handles = dict(zip(texts(legend.get_texts()), legend.get_patches(), strict=True))
    assert lightness(handles["may attend"].get_facecolor()[:3]) == pytest.approx(dark)
    assert lightness(handles["may not"].get_facecolor()[:3]) == pytest.approx(light)


@pytest.mark.slow
def test_nothing_overlaps_in_a_picture_of_masks():
    figure = plot.mask_pictures([masks.causal()] * 5, 60, titles=["causal"] * 5)
    figure.draw_without_rendering()
    words = [text for text in figure.texts if text.get_text()]
    boxes = [artist.get_window_extent() for artist in (*figure.legends, *words)]
    assert overlaps([*boxes, *(axes.get_tightbbox() for axes in figure.axes)]) == []


# Positions.


def test_positions_are_curves_above_and_all_of_the_table_below():
    table = weights(7, 11) - 0.1
    upper, lower, bar = plot.positions(table, (2, 5), "learned").axes
    first, second = upper.get_lines()
    np.testing.assert_array_equal(first.get_ydata(), table[:, 2])
    np.testing.assert_array_equal(second.get_ydata(), table[:, 5])
    np.testing.assert_array_equal(lower.images[0].get_array(), table.T)
    low, high = lower.images[0].get_clim()
    assert -low == high == np.abs(table).max()
    assert upper.get_xlim() == lower.get_xlim()
    assert "learned" in texts(upper.figure.texts) and bar.get_ylabel() == "Value"
    cmap = lower.images[0].cmap  # lighter all the way
    greys = [lightness(cmap(share)[:3]) for share in np.linspace(0, 1, 17)]
    assert np.all(np.diff(greys) > 0.02)


# Flow.


def lines(figure):
    """(ends, widths, lightness) of the lines of a flow, the lowest first."""
    (drawn,) = figure.axes[0].collections
    greys = [lightness(color[:3]) for color in drawn.get_colors()]
    return np.array(drawn.get_segments()), drawn.get_linewidths(), greys


def test_a_line_joins_a_query_to_its_key():
    figure = plot.flow([[0.0, 0.3], [0.7, 0.0], [0.0, 0.04]], ["a", "b", "c"], ["d", "e"])
    ends, _, _ = lines(figure)
    # Three words on the left at 0, 1, 2; two on the right, spread over the same height.
    np.testing.assert_allclose(ends, [[[0, 0], [1, 1.75]], [[0, 1], [1, 0.25]]])
    words = {text.get_text(): text.xy for text in figure.axes[0].texts}
    assert words == {"a": (0, 0), "b": (0, 1), "c": (0, 2), "d": (1, 0.25), "e": (1, 1.75)}
    assert texts(figure.axes[0].get_xticklabels()) == ["Queries", "Keys"]


def test_more_weight_is_wider_darker_and_on_top():
    _, widths, greys = lines(plot.flow([[0.6, 0.1], [0.3, 1.0]], ["a", "b"], ["c", "d"]))
    assert np.all(np.diff(widths) > 0.3)
    assert np.all(np.diff(greys) < -0.02) and greys[0] < 0.9  # seen on white


@pytest.mark.parametrize("threshold, count", [(0.0, 3), (0.2, 2), (0.5, 1), (2.0, 0)])
def test_below_the_threshold_there_is_no_line(threshold, count):
    weights = [[0.0, 0.1, 0.3], [np.nan, 0.5, 0.0]]
    ends, _, _ = lines(plot.flow(weights, ["a", "b"], ["c", "d", "e"], threshold=threshold))
    assert len(ends) == count


# Heads.


def test_a_row_a_layer_and_a_column_a_head():
    array = weights(2, 3, 5, 7)
    figure = plot.head_grid(array, title="encoder")
    shown = [image.get_array() for image in images(figure)]
    np.testing.assert_array_equal(shown, array.reshape(6, 5, 7))
    heads, names = figure.axes[:3], [axes.get_ylabel() for axes in figure.axes[:6:3]]
    assert [axes.get_title() for axes in heads] == ["head 0", "head 1", "head 2"]
    assert names == ["layer 0", "layer 1"] and "encoder" in texts(figure.texts)
    assert {image.get_clim() for image in images(figure)} == {(0.0, array.max())}
    assert {"Keys", "Queries"} <= set(texts(figure.texts))


@pytest.mark.slow
def test_layers_may_have_other_numbers_of_heads():
    figure = plot.head_grid({"a": weights(3, 5, 7), "b": weights(2, 5, 7)})
    assert [axes.axison for axes in figure.axes[:6]] == [True] * 5 + [False]
    figure.draw_without_rendering()
    # The third head has nothing beneath it.
    below = [bool(words_shown(axes.xaxis)) for axes in figure.axes[:5]]
    assert below == [False, False, True, True, True]


@pytest.mark.parametrize(
    "paths, names",
    [
        (
            ["model/encoder/block_0/attention", "model/encoder/block_1/attention"],
            ["block_0", "block_1"],
        ),
        (["model/encoder/attention"], ["attention"]),
        (["attention", "attention:1"], ["attention", "attention:1"]),
        (["a/b", "a/b/c"], ["b", "b/c"]),
        (["a/b", "c/a/b"], ["a", "c/a"]),
    ],
)
def test_a_layer_is_named_by_what_its_path_alone_has(paths, names):
    figure = plot.head_grid({path: weights(1, 5, 7) for path in paths})
    assert [axes.get_ylabel() for axes in figure.axes[: len(paths)]] == names


@pytest.mark.slow
def test_words_stand_at_the_outer_edges_of_the_grid():
    figure = plot.head_grid(weights(2, 3, 2, 5), ["un", "chat"], WORDS)
    figure.draw_without_rendering()
    left = [bool(words_shown(axes.yaxis)) for axes in figure.axes[:6]]
    below = [bool(words_shown(axes.xaxis)) for axes in figure.axes[:6]]
    assert left == [True, False, False] * 2 and below == [False] * 3 + [True] * 3


def test_long_sentences_show_some_words():
    labels = [f"word{number}" for number in range(60)]
    axes = plot.head_grid(weights(1, 2, 60, 60), labels, labels).axes[0]
    written = texts(axes.get_yticklabels())
    assert 10 <= len(written) <= 30
    assert written == [labels[int(place)] for place in axes.get_yticks()]


# Sixty tokens, and what is left of colors.


@pytest.mark.slow
@pytest.mark.parametrize("draw", [plot.heatmaps, plot.flow, plot.head_grid])
def test_sixty_words_do_not_run_into_each_other(draw):
    labels = [f"token{number}" for number in range(60)]
    array = np.eye(60) if draw is not plot.head_grid else np.eye(60)[None, None]
    figure = draw(array, labels, labels)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    words = axes.texts if draw is plot.flow else axes.get_yticklabels()
    words = [word for word in words if word.get_text() in labels]
    boxes = [word.get_window_extent() for word in words]
    assert len(boxes) >= 12 and words[0].get_fontsize() >= 6
    assert overlaps(boxes, pixels=0.0) == []


def test_a_chinese_character_counts_as_two_letters():
    assert canvas.letters("注意力 ab") == 9
