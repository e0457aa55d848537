"""Figures of masks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfattn import _checks, _optional
from tfattn.plot import canvas

WHO = "mask_pictures"
MAY, MAY_NOT = "#0072b2", "#e4e4e4"


def mask_pictures(
    masks: Any,
    queries: int | None = None,
    keys: int | None = None,
    titles: Sequence[str] | None = None,
    columns: int = 4,
) -> canvas.Figure:
    """Figures of masks: a cell is dark if a query may attend to a key, else light.

    Args:
        masks: a mask of `tfattn.masks`, a bool array, or a sequence of these. Arrays broadcast to
            `(T, S)`, `(B, T, S)` or `(B, H, T, S)`, with a picture per batch row and head.
        queries: positive int T. Defaults to the rows of the first mask, if it is an array.
        keys: positive int S. Defaults to the columns of that array, or to `queries`.
        titles: a sequence of strings, one per picture.
        columns: positive int, the maximum number of pictures side by side.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: a mask is neither a mask object nor a bool array, or has another size; the
            number of titles is wrong.
    Example:
        >>> from tfattn import masks
        >>> rules = [masks.causal(), masks.window(2), masks.causal() & masks.window(2)]
        >>> figure = tfattn.plot.mask_pictures(rules, 8, titles=["causal", "window", "both"])
        >>> [axes.get_title() for axes in figure.axes]
        ['causal', 'window', 'both']
    """
    _checks.positive_int(WHO, "columns", columns)
    pictures = _pictures(masks, queries, keys)  # (N, T, S)
    count, num_queries, num_keys = pictures.shape
    titles = canvas.labels(WHO, "titles", titles, count, "picture")
    columns = min(columns, count)
    rows = -(-count // columns)
    side = min(max(0.16 * max(num_queries, num_keys), 1.5), 3.2 if count > 1 else 4.0)
    height, width = (max(side * n / max(num_queries, num_keys), 0.6) for n in pictures.shape[1:])
    width = max(width + 0.3, 0.085 * canvas.longest(titles))
    figure = canvas.new_figure(WHO, columns * width + 0.7, rows * (height + 0.45) + 0.9)
    for number, picture in enumerate(pictures):
        _draw(figure.add_subplot(rows, columns, number + 1), picture)
    canvas.label_edges(figure.axes, columns, (width, height), titles)
    patches = _optional.find("matplotlib.patches", "plot", WHO)
    meanings = {"may attend": MAY, "may not": MAY_NOT}
    handles = [patches.Patch(color=color, label=words) for words, color in meanings.items()]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=2,
        frameon=False,
        fontsize=canvas.SMALL + 1,
    )
    return canvas.finished(figure)


def _pictures(masks: Any, queries: int | None, keys: int | None) -> np.ndarray:
    """Every mask as bool `(N, T, S)`."""
    if hasattr(masks, "dense") or not isinstance(masks, list | tuple) or _is_matrix(masks):
        masks = [masks]
    if not masks:
        _checks.fail(WHO, "masks", "hold at least one mask", masks)
    shape = () if hasattr(masks[0], "dense") else np.shape(np.asarray(masks[0], dtype=object))
    if queries is None and len(shape) >= 2:
        queries = shape[-2]
    if keys is None:
        keys = shape[-1] if len(shape) >= 2 else queries
    size = _checks.positive_int(WHO, "queries", queries), _checks.positive_int(WHO, "keys", keys)
    found = [_dense(mask, *size) for mask in masks]
    return np.concatenate([one.reshape(-1, *size) for one in found])


def _is_matrix(masks: Sequence[Any]) -> bool:
    """Whether these are the rows of one array instead of masks."""
    return bool(masks) and not hasattr(masks[0], "dense") and np.ndim(masks[0]) == 1


def _dense(mask: Any, queries: int, keys: int) -> np.ndarray:
    letters = "(T, S), (B, T, S) or (B, H, T, S)"
    try:
        array = np.asarray(mask.dense(queries, keys) if hasattr(mask, "dense") else mask)
    except ValueError:  # of rows of unlike lengths
        array = np.array(None)
    if array.ndim < 2:
        _checks.fail(WHO, "masks", f"be masks, or booleans of shape {letters}", mask)
    _checks.boolean_dtype(WHO, "masks", str(array.dtype), "or be masks of `tfattn.masks`")
    wanted = (*array.shape[:-2], queries, keys)
    _checks.broadcasts(WHO, "masks", array.shape, wanted, letters)
    return np.broadcast_to(array, wanted)


def _draw(axes: canvas.Axes, picture: np.ndarray) -> None:
    colors = _optional.find("matplotlib.colors", "plot", WHO)
    shades = colors.ListedColormap([MAY_NOT, MAY])
    axes.imshow(picture, cmap=shades, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    rows, columns = picture.shape
    if max(rows, columns) <= 32:  # room for lines between the cells
        axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="minor", length=0)
    axes.spines[:].set_visible(False)
