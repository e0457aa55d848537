"""Figures of the road: curves, bars, masks, positions, flow, heads, and the caller's own axes."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from tests.test_plot import QUERIES, WORDS, X, images, texts, weights
from tfattn import masks, plot
from tfattn.plot import canvas


def lightness(colour):
    """How light the eye finds a colour, 0 to 1: what is left of it in grey."""
    return np.dot(to_rgb(colour), (0.299, 0.587, 0.114))


# Heatmaps at numbers, and with a centre.


def test_with_values_cells_lie_half_way_around_their_numbers():
    x = np.array([0.0, 1.0, 3.0])
    mesh = plot.heatmaps(weights(2, 3), row_values=[5, 7], column_values=x).axes[0].collections[0]
    corners = mesh.get_coordinates()
    np.testing.assert_array_equal(corners[0, :, 0], [-0.5, 0.5, 2.0, 4.0])
    np.testing.assert_array_equal(corners[:, 0, 1], [4.0, 6.0, 8.0])
    np.testing.assert_array_equal(mesh.get_array(), weights(2, 3))


def test_rows_with_values_go_upwards_and_rows_without_go_down():
    def upwards(**values):
        bottom, top = plot.heatmaps(weights(2, 3), **values).axes[0].get_ylim()
        return bottom < top

    assert upwards(row_values=[0, 1]) and upwards(row_values=[0, 1], column_values=[0, 1, 2])
    assert not upwards() and not upwards(column_values=[0, 1, 2])


def test_numbers_and_words_stand_at_the_values():
    values = {"row_values": [0.5, 2.5], "column_values": [0, 10, 30]}
    words = ["a", "b", "c"]
    axes = plot.heatmaps(np.zeros((2, 3)), None, words, number_format=".0f", **values).axes[0]
    places = [text.get_position() for text in axes.texts]
    assert places == [(0, 0.5), (10, 0.5), (30, 0.5), (0, 2.5), (10, 2.5), (30, 2.5)]
    assert list(axes.get_xticks()) == [0, 10, 30] and texts(axes.get_xticklabels()) == words


def test_a_single_value_is_a_cell_of_width_1():
    axes = plot.heatmaps([[1.0]], row_values=[3], column_values=[7]).axes[0]
    assert axes.get_xlim() == (6.5, 7.5) and axes.get_ylim() == (2.5, 3.5)


def test_a_centre_lies_in_the_middle_of_the_colours():
    image = images(plot.heatmaps([[-0.5, 2.0]], centre=0.0))[0]
    assert image.get_clim() == (-2.0, 2.0) and image.cmap.name == "RdBu_r"
    image = images(plot.heatmaps([[3.0, np.nan]], centre=1.0, colour_map="coolwarm"))[0]
    assert image.get_clim() == (-1.0, 3.0) and image.cmap.name == "coolwarm"
    assert images(plot.heatmaps([[0.0]], centre=0.0))[0].get_clim() == (-1.0, 1.0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"row_values": [1.0]}, "`row_values` must hold a number a row, 2 of them"),
        ({"column_values": [0, 2, 1]}, "`column_values` must increase"),
        ({"row_values": [1, 1]}, "`row_values` must increase"),
        ({"row_values": [1, np.nan]}, "`row_values` must increase"),
        ({"row_values": [[1, 2]]}, r"`row_values` must have shape \(N,\)"),
        ({"ax": [1]}, "`ax` must be matplotlib axes"),
    ],
)
def test_heatmaps_refuse_values_that_are_no_places(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot.heatmaps(weights(2, 3), **arguments)


# The caller's axes.

SINGLE = {
    "bars": lambda ax: plot.bars(WORDS, weights(5), "x", "y", ax=ax),
    "curves": lambda ax: plot.curves(X, X, "x", "y", ax=ax),
    "flow": lambda ax: plot.flow(weights(2, 5), ["un", "chat"], WORDS, ax=ax),
    "heatmaps": lambda ax: plot.heatmaps(weights(2, 5), ax=ax),
    "loss_curve": lambda ax: plot.loss_curve([3.0, 2.0], ax=ax),
    "regression_fit": lambda ax: plot.regression_fit(X, X, QUERIES, QUERIES, ax=ax),
    "surface": lambda ax: plot.surface(X, QUERIES, weights(11, 7), ax=ax),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_figure_is_drawn_into_axes_of_the_callers(name):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert SINGLE[name](right) is figure
    assert right.has_data() or right.collections
    assert not left.has_data() and not left.get_xlabel()


@pytest.mark.parametrize("name", SINGLE)
def test_axes_of_a_part_of_a_figure_are_drawn_into_too(name):
    figure = Figure()
    assert SINGLE[name](figure.subfigures(1, 2)[1].add_subplot()) is figure


def test_many_heatmaps_do_not_go_into_one_pair_of_axes():
    with pytest.raises(ValueError, match="`ax` must be None for more than one heatmap"):
        plot.heatmaps(weights(2, 2, 5), ax=Figure().add_subplot())


@pytest.mark.parametrize("size, words", [((2.0, 2.0), 11), ((20.0, 20.0), 60)])
def test_words_that_small_axes_have_no_room_for_are_left_out_evenly(size, words):
    labels = [f"w{number}" for number in range(60)]
    axes = Figure(figsize=size).add_subplot()
    plot.heatmaps(np.eye(60), labels, labels, ax=axes)
    places = axes.get_xticks()
    assert len(places) <= words and len(set(np.diff(places))) == 1
    assert texts(axes.get_xticklabels()) == [f"w{place:.0f}" for place in places]


# Curves.


def test_logarithmic_axes_have_plain_numbers():
    lengths = [16, 32, 64, 128]
    axes = plot.curves(lengths, [2, 3, 5, 9], "x", "y", log_x=True, log_y=True).axes[0]
    axes.figure.draw_without_rendering()
    assert texts(axes.get_xticklabels()) == ["16", "32", "64", "128"]
    assert {"2", "5", "9"} <= set(texts(axes.get_yticklabels()))


def test_many_points_on_a_logarithmic_axis_have_round_ticks():
    axes = plot.curves(np.geomspace(0.05, 2, 40), np.arange(40), "x", "y", log_x=True).axes[0]
    axes.figure.draw_without_rendering()
    assert {"0.05", "0.1", "0.2", "0.5", "1", "2"} <= set(texts(axes.get_xticklabels()))


def test_many_decades_keep_powers_of_ten():
    axes = plot.curves([1, 2], [1e-6, 1e3], "x", "y", log_y=True).axes[0]
    axes.figure.draw_without_rendering()
    labels = texts(axes.get_yticklabels())
    assert labels and all("10^" in label for label in labels)


def test_a_curve_beneath_another_is_wider():
    lines = plot.curves(X, {"a": X, "b": X + 7, "c": X}, "x", "y").axes[0].get_lines()
    below, apart, above = (line.get_linewidth() for line in lines)
    assert below > apart == above


def test_curves_differ_in_colour_dash_and_marker():
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
    first, second = (
        plot.curves({"a": X, "b": [1, 2]}, {"a": X, "b": [3, 4]}, "x", "y").axes[0].get_lines()
    )
    np.testing.assert_array_equal(first.get_xydata(), np.stack([X, X], axis=1))
    np.testing.assert_array_equal(second.get_xydata(), [[1, 3], [2, 4]])


def test_axes_are_logarithmic_on_request():
    def scales(**logs):
        axes = plot.curves(X + 1, X + 1, "x", "y", **logs).axes[0]
        return axes.get_xscale(), axes.get_yscale()

    assert scales() == ("linear", "linear")
    assert scales(log_x=True) == ("log", "linear")
    assert scales(log_y=True) == ("linear", "log")


def test_a_marked_x_is_a_dot_on_its_curve():
    series = {"line": X, "square": X**2}
    axes = plot.curves(X, series, "x", "y", marked={"square": 2.0, "line": 0.25}).axes[0]
    dots = [line.get_xydata() for line in axes.get_lines()[2:]]
    np.testing.assert_allclose(dots, [[[2.0, 4.0]], [[0.25, 0.25]]])
    assert texts(axes.texts) == ["2", "0.25"]


def test_words_mark_an_only_curve():
    axes = plot.curves(X, X, "x", "y", marked={"chosen": 2.0}).axes[0]
    assert texts(axes.texts) == ["chosen"] and axes.get_legend() is None


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"series": {"a": [1.0]}}, "`series` must be as long as `x`, 7"),
        ({"series": {}}, "`series` must hold at least one name"),
        ({"series": {"a": ["b"]}}, "`series` must hold numbers"),
        ({"x": {"b": X}}, r"`x` must have the names of `series`, \['line', 'square'\] too"),
        ({"marked": {"cube": 1.0}}, r"`marked` must name curves, of \['line', 'square'\]"),
    ],
)
def test_curves_refuse_what_does_not_fit(arguments, message):
    arguments = {"x": X, "series": {"line": X, "square": X**2}, **arguments}
    with pytest.raises(ValueError, match=message):
        plot.curves(x_label="x", y_label="y", **arguments)


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


@pytest.mark.parametrize(
    "words, turned",
    [(["red", "blue"], 0), (["an extraordinary word"] * 3, 0), (["extraordinary " * 3] * 5, 60)],
)
def test_words_beneath_bars_are_turned_where_they_do_not_fit(words, turned):
    axes = plot.bars(words, np.ones(len(words)), "x", "y").axes[0]
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {turned}


@pytest.mark.parametrize(
    "labels, series, message",
    [
        (["a"], [1, 2], "`labels` must hold a label a bar, 2 of them"),
        (["a"], {"b": [1], "c": [1, 2]}, "`series` must hold a number a label, 1"),
    ],
)
def test_bars_refuse_what_does_not_fit(labels, series, message):
    with pytest.raises(ValueError, match=message):
        plot.bars(labels, series, "x", "y")


def test_a_negative_number_at_a_bar_has_the_sign_of_the_axis():
    axes = plot.bars(["a", "b"], [-1.5, -0.001], "x", "y", number_format=".1f").axes[0]
    assert texts(axes.texts) == ["\N{MINUS SIGN}1.5", "0.0"]


# Masks.


def shown(figure):
    return [image.get_array().data.astype(bool) for image in images(figure)]


def test_a_mask_object_is_asked_about_every_pair():
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


@pytest.mark.parametrize("wrap", [np.asarray, lambda array: [array], np.ndarray.tolist])
def test_an_array_tells_its_own_size(wrap):
    array = np.tri(5, 7, dtype=bool)
    np.testing.assert_array_equal(shown(plot.mask_pictures(wrap(array))), [array])


def test_an_array_that_broadcasts_takes_the_size_that_is_asked_for():
    row = np.array([[True, False, True]])
    np.testing.assert_array_equal(shown(plot.mask_pictures([row], 2, 3)), [[row[0], row[0]]])


def test_what_may_attend_is_darker_in_grey_too():
    figure = plot.mask_pictures(np.eye(2, dtype=bool), titles=["own"])
    (image,) = images(figure)
    light, dark = (lightness(image.cmap(image.norm(value))[:3]) for value in (0, 1))
    assert light - dark > 0.4
    handles = {text.get_text(): patch for text, patch in _legend(figure)}
    assert lightness(handles["may attend"].get_facecolor()[:3]) == pytest.approx(dark)
    assert lightness(handles["may not"].get_facecolor()[:3]) == pytest.approx(light)


def _legend(figure):
    (legend,) = figure.legends
    return list(zip(legend.get_texts(), legend.get_patches(), strict=True))


@pytest.mark.slow
def test_nothing_overlaps_in_a_picture_of_masks():
    figure = plot.mask_pictures([masks.causal()] * 5, 60, titles=["causal"] * 5)
    figure.draw_without_rendering()
    boxes = [
        figure.legends[0].get_window_extent(),
        *(text.get_window_extent() for text in _names(figure)),
    ]
    boxes += [axes.get_tightbbox() for axes in figure.axes]
    overlaps = [
        (i, j) for i in range(len(boxes)) for j in range(i) if _shared(boxes[i], boxes[j]) > 4
    ]
    assert overlaps == []


def _names(figure):
    return [text for text in figure.texts if text.get_text()]


def _shared(box, other):
    width = min(box.x1, other.x1) - max(box.x0, other.x0)
    height = min(box.y1, other.y1) - max(box.y0, other.y0)
    return max(width, 0.0) * max(height, 0.0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"masks": np.ones((2, 2))}, "`masks` must be boolean, .* Received: masks='float64'"),
        ({"masks": []}, "`masks` must hold at least one mask"),
        ({"masks": masks.causal()}, "`queries` must be a positive integer"),
        ({"masks": masks.causal(), "queries": 3, "keys": 0}, "`keys` must be a positive integer"),
        ({"masks": np.ones((2, 5), bool), "queries": 3}, r"`masks` must have shape .*\(3, 5\)"),
        ({"masks": masks.causal(), "queries": 3, "titles": []}, "must hold a label a picture, 1"),
    ],
)
def test_mask_pictures_refuse_what_is_no_mask(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot.mask_pictures(**arguments)


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


def test_the_colours_of_positions_grow_lighter_all_the_way():
    image = plot.positions(weights(7, 11)).axes[1].images[0]
    greys = [lightness(image.cmap(share)[:3]) for share in np.linspace(0, 1, 17)]
    assert np.all(np.diff(greys) > 0.02)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"table": np.ones(7)}, r"positions: `table` must have shape \(P, D\)"),
        ({"dimensions": (3, 11)}, "`dimensions` must hold numbers below the width, 11"),
        ({"dimensions": ()}, "`dimensions` must hold numbers below the width, 11"),
        ({"dimensions": (-1,)}, "`dimensions` must be an integer of at least 0"),
    ],
)
def test_positions_refuse_what_is_not_in_the_table(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot.positions(**{"table": weights(7, 11), **arguments})


# Flow.


def lines(figure):
    """(ends, widths, lightness) of the lines of a flow, the lowest first."""
    (drawn,) = figure.axes[0].collections
    greys = [lightness(colour[:3]) for colour in drawn.get_colors()]
    return np.array(drawn.get_segments()), drawn.get_linewidths(), greys


def test_a_line_joins_a_word_to_what_it_looks_at():
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


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"weights": np.ones((1, 2, 5))}, r"flow: `weights` must have shape \(T, S\)"),
        ({"row_labels": ["un"]}, "`row_labels` must hold a label a row, 2 of them"),
        ({"column_labels": ["un"]}, "`column_labels` must hold a label a column, 5 of them"),
        ({"threshold": -1}, "`threshold` must be a finite number of at least 0"),
    ],
)
def test_flow_refuses_what_does_not_fit(arguments, message):
    arguments = {
        "weights": weights(2, 5),
        "row_labels": ["un", "chat"],
        "column_labels": WORDS,
        **arguments,
    }
    with pytest.raises(ValueError, match=message):
        plot.flow(**arguments)


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


def test_layers_may_have_other_numbers_of_heads():
    figure = plot.head_grid({"a": weights(3, 5, 7), "b": weights(2, 5, 7)})
    assert [axes.axison for axes in figure.axes[:6]] == [True] * 5 + [False]
    figure.draw_without_rendering()
    # The third head has nothing beneath it.
    below = [bool(_seen(axes.xaxis)) for axes in figure.axes[:5]]
    assert below == [False, False, True, True, True]


def test_the_grid_of_heads_says_which_side_looks():
    assert texts(plot.head_grid(weights(1, 2, 5, 7)).texts) == ["", "Keys", "Queries"]


@pytest.mark.parametrize(
    "paths, names",
    [
        (
            ["model/encoder/block_0/attention", "model/encoder/block_1/attention"],
            ["block_0", "block_1"],
        ),
        (
            ["decoder/block/self_attention", "decoder/block/attention"],
            ["self_attention", "attention"],
        ),
        (["model/encoder/attention"], ["attention"]),
        (["attention", "attention:1"], ["attention", "attention:1"]),
        (["a/b", "a/b/c"], ["b", "b/c"]),
    ],
)
def test_a_layer_is_named_by_what_its_path_alone_has(paths, names):
    figure = plot.head_grid({path: weights(1, 5, 7) for path in paths})
    assert [axes.get_ylabel() for axes in figure.axes[: len(paths)]] == names


def test_words_stand_at_the_outer_edges_of_the_grid():
    figure = plot.head_grid(weights(2, 3, 2, 5), ["un", "chat"], WORDS)
    figure.draw_without_rendering()
    left = [bool(_seen(axes.yaxis)) for axes in figure.axes[:6]]
    below = [bool(_seen(axes.xaxis)) for axes in figure.axes[:6]]
    assert left == [True, False, False] * 2 and below == [False] * 3 + [True] * 3


def _seen(axis):
    return [tick.label1.get_text() for tick in axis.get_major_ticks() if tick.label1.get_visible()]


def test_of_long_sentences_some_words_are_written():
    labels = [f"word{number}" for number in range(60)]
    axes = plot.head_grid(weights(1, 2, 60, 60), labels, labels).axes[0]
    written = texts(axes.get_yticklabels())
    assert 10 <= len(written) <= 30
    assert written == [labels[int(place)] for place in axes.get_yticks()]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"weights": weights(3, 2, 5)}, r"`weights` must have shape \(L, H, T, S\), or be a dict"),
        ({"weights": {}}, "`weights` must hold at least one layer"),
        (
            {"weights": {"a": weights(1, 3, 2, 5)}},
            r"must have shape \(H, T, S\) a layer, one sentence of the batch",
        ),
        (
            {"weights": {"a": weights(3, 2, 5), "b": weights(3, 5, 5)}},
            r"`weights` must have the T and S of the first layer, \(2, 5\), in each layer",
        ),
        ({"row_labels": WORDS}, "`row_labels` must hold a label a row, 2 of them"),
        ({"column_labels": WORDS[:2]}, "`column_labels` must hold a label a column, 5 of them"),
    ],
)
def test_head_grid_refuses_what_does_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot.head_grid(**{"weights": weights(3, 4, 2, 5), **arguments})


# Sixty tokens, and what is left of colours.


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
    overlaps = [(i, j) for i in range(len(boxes)) for j in range(i) if _shared(boxes[i], boxes[j])]
    assert overlaps == []


def test_losses_and_fits_differ_in_dash_too():
    losses = plot.loss_curve({"loss": [2, 1], "val_loss": [3, 2]}).axes[0].get_lines()
    fits = plot.regression_fit(X, X, X, {"a": X, "b": 2 * X}, 3 * X).axes[0].get_lines()
    for drawn in (losses, fits):
        assert len({str(line._dash_pattern) for line in drawn}) == len(drawn)


def test_a_chinese_character_counts_as_two_letters():
    assert canvas.letters("注意力 ab") == 9
