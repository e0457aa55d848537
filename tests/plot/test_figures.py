"""Figures: what is on them, and that they belong to the caller alone."""

import inspect
import sys
import types

import matplotlib.colors
import matplotlib.pyplot
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from tfattn import masks, plot

WORDS = ["the", "small", "cat", "sleeps", "."]


def weights(*shape):
    random = np.random.default_rng(7).uniform(0.1, 1.0, shape)
    return random / random.sum(axis=-1, keepdims=True)


def images(figure):
    return [axes.images[0] for axes in figure.axes if axes.images]


def texts(labels):
    return [label.get_text() for label in labels]


def words_shown(axis):
    """The words beside an axis, or none where a neighbor shows them."""
    return [tick.label1.get_text() for tick in axis.get_major_ticks() if tick.label1.get_visible()]


# Heatmaps.


@pytest.mark.parametrize(
    "shape, grid",
    [((2, 5), (1, 1)), ((3, 2, 5), (1, 3)), ((6, 2, 5), (2, 4)), ((2, 3, 7, 5), (2, 3))],
)
def test_heatmaps_are_in_reading_order_with_one_bar(shape, grid):
    matrices, lead = weights(*shape), shape[:-2] or (1,)
    names = np.arange(np.prod(lead)).astype(str)
    figure = plot.heatmaps(matrices, titles=names.reshape(lead).tolist())  # nested like the grid
    shown = [image.get_array().data for image in images(figure)]
    np.testing.assert_array_equal(np.stack(shown), matrices.reshape(-1, *shape[-2:]))
    assert [image.axes.get_title() for image in images(figure)] == names.tolist()
    assert len(figure.axes) == len(names) + 1
    places = figure.axes[0].get_subplotspec().get_gridspec()
    assert (places.nrows, places.ncols) == grid


@pytest.mark.parametrize(
    "matrices, options, scale",
    [
        ([[-0.5, 0.25]], {}, (-0.5, 0.25)),
        ([[[0.02, 0.1]], [[0.5, 0.7]]], {}, (0.0, 0.7)),  # all have one scale
        (np.zeros((2, 3)), {}, (0.0, 1.0)),
        (np.full((2, 3), np.nan), {}, (0.0, 1.0)),
        ([[-0.5, 2.0]], {"center": 0.0}, (-2.0, 2.0)),
        ([[3.0, np.nan]], {"center": 1.0, "color_map": "coolwarm"}, (-1.0, 3.0)),
        ([[0.0]], {"center": 0.0}, (-1.0, 1.0)),
    ],
)
def test_heatmaps_scale_holds_zero_and_all_numbers_around_the_center(matrices, options, scale):
    shown = images(plot.heatmaps(matrices, **options))
    assert {image.get_clim() for image in shown} == {scale}
    if options:
        assert shown[0].cmap.name == options.get("color_map", "RdBu_r")


def test_heatmaps_labels_stand_on_the_axes_and_dollars_are_no_formula(tmp_path):
    words = ["$$", "$^$", "$\\x$", "5 $ and 6 $", "."]
    figure = plot.heatmaps(
        weights(2, 5), ["un", "chat"], words, "looks", "read", "written", "weight"
    )
    axes, bar = figure.axes
    assert texts(axes.get_yticklabels()) == ["un", "chat"]
    assert texts(axes.get_xticklabels()) == words
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("read", "written", "looks")
    assert bar.get_ylabel() == "weight"
    figure.savefig(tmp_path / "figure.png")  # where formulas are read


def test_heatmaps_labels_wider_than_their_columns_are_rotated():
    for words, degrees in (
        (WORDS, 0),
        ([*WORDS[:4], "extraordinary"], 60),
        (WORDS[:4] * 5 + WORDS[:3], 60),
    ):
        axes = plot.heatmaps(weights(2, len(words)), column_labels=words).axes[0]
        assert {label.get_rotation() for label in axes.get_xticklabels()} == {degrees}


def test_heatmaps_in_a_grid_have_labels_at_the_outer_edges():
    figure = plot.heatmaps(weights(5, 2, 5), ["un", "chat"], WORDS, columns=3)
    shown = [axes for axes in figure.axes if axes.images]
    assert [bool(words_shown(axes.yaxis)) for axes in shown] == [True, False, False, True, False]
    # The third has nothing beneath it, for the second row is short.
    assert [bool(words_shown(axes.xaxis)) for axes in shown] == [False, False, True, True, True]
    assert texts(figure.texts) == ["Keys", "Queries"]


def test_heatmaps_numbers_are_written_into_cells_on_request():
    axes = plot.heatmaps([[0.25, 0.75]], number_format=".1f").axes[0]
    assert texts(axes.texts) == ["0.2", "0.8"]
    assert [text.get_color() for text in axes.texts] == ["black", "white"]
    assert len(plot.heatmaps([[0.25, 0.75]]).axes[0].texts) == 0
    # a zero has no sign, and a minus is a minus
    axes = plot.heatmaps([[-0.04, -0.26]], number_format=".1f").axes[0]
    assert texts(axes.texts) == ["0.0", "\N{MINUS SIGN}0.3"]


# Losses.


HISTORY = {
    "loss": [3.0, 2.0],
    "accuracy": [0.1, 0.2],
    "val_loss": [3.5, 2.5],
    "learning_rate": [0.1, 0.1],
}


def test_loss_curve_shows_both_losses_of_a_history_and_nothing_else():
    for history in (types.SimpleNamespace(history=HISTORY), HISTORY):
        axes = plot.loss_curve(history).axes[0]
        assert texts(axes.get_legend().get_texts()) == ["training", "validation"]
        np.testing.assert_array_equal(axes.get_lines()[1].get_xydata(), [[1, 3.5], [2, 2.5]])


def test_loss_curve_of_a_sequence_has_no_legend_and_of_one_epoch_is_a_dot():
    axes = plot.loss_curve([3.0, 2.0, 1.0], title="falls").axes[0]
    assert axes.get_legend() is None and len(axes.get_lines()) == 1
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("Epoch", "Loss", "falls")
    axes = plot.loss_curve([3.0]).axes[0]
    assert axes.get_lines()[0].get_marker() == "o"
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


# Every figure.


DRAWINGS = {
    "flow": {"weights": weights(2, 5), "row_labels": ["un", "chat"], "column_labels": WORDS},
    "head_grid": {"weights": weights(2, 3, 2, 5)},
    "heatmaps": {"matrices": weights(2, 5)},
    "loss_curve": {"history": [3.0, 2.0]},
    "mask_pictures": {"masks": [np.tri(5, dtype=bool), np.eye(5, dtype=bool)]},
}
PAGES = {"Viewer", "viewer"}  # HTML, without matplotlib
MANY = {"head_grid", "mask_pictures"}  # make axes of their own


def drawn(name, **options):
    return getattr(plot, name)(**DRAWINGS[name], **options)


def test_figures_of_all_public_functions_are_drawn_here():
    assert set(DRAWINGS) == set(plot.__all__) - PAGES


@pytest.mark.parametrize("name", DRAWINGS)
def test_figure_is_written_to_a_file_and_leaves_pyplot_alone(name, tmp_path):
    def state():
        settings = matplotlib.get_backend(), dict(matplotlib.rcParams)
        return matplotlib.pyplot.get_fignums(), settings

    before = state()
    drawn(name).savefig(tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert state() == before


DOLLARS = "$^$ of $5"
NAMED = ("title", "x_label", "y_label", "bar_label")
FEW = {
    "heatmaps": {"titles": [DOLLARS]},
    "loss_curve": {"history": {DOLLARS: [3.0, 2.0], "loss": [3.0, 2.0]}},
    "mask_pictures": {"titles": [DOLLARS] * 2},
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_figure_names_with_dollars_are_no_formulas(name, tmp_path):
    taken = inspect.signature(getattr(plot, name)).parameters
    named = {argument: DOLLARS for argument in NAMED if argument in taken}
    options = {**DRAWINGS[name], **named, **FEW.get(name, {})}
    figure = getattr(plot, name)(**options)
    found = [text for text in figure.findobj(Text) if text.get_text() == DOLLARS]
    assert len(found) >= len(named) and not any(text.get_parse_math() for text in found)
    figure.savefig(tmp_path / "figure.png", dpi=40)


@pytest.mark.parametrize("name", sorted(set(DRAWINGS) - MANY))
def test_figure_in_axes_of_a_subfigure_leaves_the_others_empty(name):
    figure = Figure()
    left, right = (part.add_subplot() for part in figure.subfigures(1, 2))
    assert drawn(name, ax=right) is figure
    assert right.has_data() or right.collections or right.patches
    assert not left.has_data() and not left.get_xlabel()


def test_figure_without_matplotlib_names_the_pip_line(monkeypatch):
    for module in [module for module in sys.modules if module.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, module, None)
    for name in DRAWINGS:
        message = rf'{name} needs matplotlib: pip install "tfattn\[plot\]"'
        with pytest.raises(ImportError, match=message):
            drawn(name)


REFUSED = [
    ("flow", {"weights": weights(1, 2, 5)}, r"`weights` must have shape \(T, S\)"),
    ("flow", {"row_labels": ["un"]}, "`row_labels` must hold one label per row, 2"),
    ("flow", {"column_labels": ["a"]}, "`column_labels` must hold one label per column, 5"),
    ("head_grid", {"weights": weights(3, 2, 5)}, r"`weights` must have shape \(L, H, T, S\), or "),
    (
        "head_grid",
        {"weights": {"a": weights(1, 3, 2, 5)}},
        r"`weights` must have shape \(H, T, S\) per layer, for one sentence of the batch",
    ),
    (
        "head_grid",
        {"weights": {"a": weights(3, 2, 5), "b": weights(3, 5, 5)}},
        r"`weights` must have the T and S of the first layer, \(2, 5\), in each layer",
    ),
    ("head_grid", {"row_labels": WORDS}, "`row_labels` must hold one label per row, 2"),
    ("head_grid", {"column_labels": ["a"]}, "`column_labels` must hold one label per column, 5"),
    ("heatmaps", {"matrices": np.ones((1, 1, 1, 2, 5))}, r"`matrices` .*matrices=\(1, 1, 1, 2, 5"),
    ("heatmaps", {"row_labels": WORDS}, "`row_labels` must hold one label per row, 2"),
    ("heatmaps", {"column_labels": ["a"]}, "`column_labels` must hold one label per column, 5"),
    ("heatmaps", {"titles": ["a", "b"]}, "`titles` must hold one label per heatmap, 1"),
    (
        "heatmaps",
        {"matrices": weights(2, 2, 5), "ax": Figure().add_subplot()},
        "`ax` must be None for more than one heatmap",
    ),
    (
        "loss_curve",
        {"history": {"accuracy": [1.0], 1: [1.0]}},
        r"`history` must have the entry 'loss'\. Received: history=\['1', 'accuracy'\]",
    ),
    ("loss_curve", {"history": [[1.0], [2.0]]}, r"`history` must have shape \(epochs,\)"),
    ("mask_pictures", {"masks": weights(2, 2)}, "`masks` must be boolean, .*masks='float64'"),
    ("mask_pictures", {"masks": masks.causal()}, "`queries` must be a positive integer"),
    ("mask_pictures", {"masks": np.ones((2, 5), bool), "queries": 3}, r"`masks` .*\(3, 5\)"),
    ("mask_pictures", {"titles": []}, "`titles` must hold one label per picture, 2"),
]


@pytest.mark.parametrize("name, arguments, message", REFUSED)
def test_figure_with_invalid_arguments_is_refused(name, arguments, message):
    with pytest.raises(ValueError, match=f"{name}: {message}"):
        getattr(plot, name)(**{**DRAWINGS[name], **arguments})
