"""Every head of every layer in one figure."""

from collections.abc import Mapping, Sequence

import numpy as np

from tfattn import _checks
from tfattn._types import ArrayLike
from tfattn.plot import canvas, cells

WHO = "head_grid"


def head_grid(
    weights: ArrayLike | Mapping[str, ArrayLike],
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    title: str | None = None,
) -> canvas.Figure:
    """Small heatmaps with one color scale: one row per layer, one column per head.

    Layers and heads are counted from 0, as in the arrays.

    Args:
        weights: `(L, H, T, S)`; or a dict from the path of a layer to `(H, T, S)`, such as the
            result of `attention_weights` for one sentence of the batch.
        row_labels: T words, the queries. Defaults to numbers.
        column_labels: S words, the keys. Defaults to numbers. For long sentences some words are
            left out.
        title: a string above the grid.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: a layer's weights have another rank, or another T or S than the first layer's;
            the number of labels is wrong.
    Example:
        >>> layer = tfattn.TransformerEncoderBlock(num_heads=2, hidden_dim=8)
        >>> recorded = tfattn.attention_weights(layer, np.ones((1, 3, 4), "float32"))
        >>> weights = {path: array[0] for path, array in recorded.items()}
        >>> figure = tfattn.plot.head_grid(weights, ["a", "small", "cat"], ["a", "small", "cat"])
        >>> [axes.get_title() for axes in figure.axes[:2]]
        ['head 0', 'head 1']
    """
    layers = _layers(weights)
    rows, columns = next(iter(layers.values())).shape[1:]
    row_labels = canvas.labels(WHO, "row_labels", row_labels, rows, "row")
    column_labels = canvas.labels(WHO, "column_labels", column_labels, columns, "column")
    heads = max(map(len, layers.values()))
    height, width = (min(max(0.16 * count, 0.9), 2.4) for count in (rows, columns))
    figure = canvas.new_figure(
        WHO,
        heads * (width + 0.1) + 1.5 + canvas.LETTER * canvas.longest(row_labels),
        len(layers) * (height + 0.1) + 0.9 + canvas.LETTER * canvas.longest(column_labels),
    )
    grid = figure.subplots(len(layers), heads, squeeze=False)
    limits = cells.scale(np.concatenate([layer.ravel() for layer in layers.values()]))
    for line, layer in zip(grid, layers.values(), strict=True):
        for axes in line[len(layer) :]:
            axes.set_axis_off()
        for axes, head in zip(line, layer, strict=False):
            drawn = cells.draw(WHO, axes, head, limits, cells.SEQUENTIAL)
    titles, labels = [f"head {head}" for head in range(heads)], (row_labels, column_labels)
    canvas.label_edges(
        figure.axes, heads, (width, height), titles, labels, row_names=[*layers], size=canvas.TINY
    )
    figure.suptitle(title or "", fontsize=canvas.MEDIUM + 1)
    cells.bar(figure, drawn, figure.axes, "Attention weight")
    return canvas.finished(figure)


def _layers(weights: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """The weights of each layer, `(H, T, S)`, by name."""
    if not isinstance(weights, Mapping):
        array = canvas.numbers(WHO, "weights", weights, (4,), "(L, H, T, S), or be a dict")
        return {f"layer {number}": layer for number, layer in enumerate(array)}
    if not weights:
        _checks.fail(WHO, "weights", "hold at least one layer", weights)
    short = _short(list(map(str, weights)))
    letters = "(H, T, S) per layer, for one sentence of the batch"
    layers = {
        name: canvas.numbers(WHO, "weights", layer, (3,), letters)
        for name, layer in zip(short, weights.values(), strict=True)
    }
    size = next(iter(layers.values())).shape[1:]
    for layer in layers.values():
        if layer.shape[1:] != size:
            expected = f"have the T and S of the first layer, {size}, in each layer"
            _checks.fail(WHO, "weights", expected, layer.shape)
    return layers


def _short(paths: list[str]) -> list[str]:
    """Paths without their common beginning and end."""
    parts = [path.split("/") for path in paths]
    if len(paths) == 1:
        return [parts[0][-1]]
    while min(map(len, parts)) > 1 and len({path[0] for path in parts}) == 1:
        parts = [path[1:] for path in parts]
    while min(map(len, parts)) > 1 and len({path[-1] for path in parts}) == 1:
        parts = [path[:-1] for path in parts]
    return ["/".join(path) for path in parts]
