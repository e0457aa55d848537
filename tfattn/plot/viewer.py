"""Attention weights as an interactive page."""

import html
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tfattn import _checks
from tfattn._files import replacing
from tfattn._types import ArrayLike
from tfattn.plot import canvas, page

WHO = "viewer"

# Views of the page: sentence of the queries, sentence of the keys.
VIEWS = {
    "encoder": ("source", "source"),
    "cross": ("target", "source"),
    "decoder": ("target", "target_in"),
    "self": ("source", "source"),
    "pooling": ("learned", "source"),
}

HEIGHT = 860  # pixels of the frame in a notebook


class Viewer:
    """An interactive page, made by `tfattn.plot.viewer`.

    A notebook displays it if it is the last line of a cell.

    Args:
        page: the HTML page.
    """

    def __init__(self, page: str) -> None:
        self.page = page

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the page as a single HTML file, which needs no network.

        Args:
            path: path of the file. Its folder must exist.
        """
        path = _checks.path("Viewer.save", "path", path)
        with replacing(path) as unfinished:
            unfinished.write_text(self.page, encoding="utf-8")

    def _repr_html_(self) -> str:
        # The frame isolates the page's styles from the notebook's, the sandbox its scripts.
        return (
            f'<iframe srcdoc="{html.escape(self.page)}" title="Attention viewer" '
            f'sandbox="allow-scripts" loading="lazy" '
            f'style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'
        )


def viewer(
    weights: Mapping[str, ArrayLike],
    source: Sequence[str],
    target: Sequence[str] | None = None,
    target_in: Sequence[str] | None = None,
    title: str = "Attention weights by word",
    language: Literal["en", "zh"] = "en",
) -> Viewer:
    """Attention weights of one pair of sentences, as an interactive page.

    Choose the attention (of the encoder, of the decoder, or from the decoder to the encoder), a
    layer and a head.
    Point at a word, tap it or move to it with the arrow keys: the page shows its weights as lines,
    shades and numbers.

    Layers, heads and positions are counted from 0, as in arrays.

    The shape of a layer's weights determines the sentences of its queries and keys, or, for
    ambiguous shapes, `encoder`, `decoder`, `self` or `cross` in its path. Otherwise a layer attends
    from `target` to `source`, except that a multiple of three layers is assumed to be in the order
    of a Transformer. Without `target`, queries that do not fit the words, as in `AttentionPooling`,
    are learned and shown as numbers.

    Args:
        weights: result of `tfattn.attention_weights`, a dict from path to `(B, T, S)` or
            `(B, H, T, S)`, of which the first sentence of the batch is shown. The page rounds them
            to 0.001.
        source: the source words. With fewer words than S, padding is left out.
        target: the target words, or None for a model of a single sentence.
        target_in: the inputs of the decoder, to which its self-attention attends: the begin token,
            then all but the last of `target`. Defaults to `target`.
        title: heading of the page.
        language: language of the labels, `"en"` or `"zh"` (Chinese).
    Returns:
        `Viewer`, with `save(path)`. A notebook displays it.
    Raises:
        ValueError: `weights` is not a dict of such arrays, or has negative or not finite numbers;
            there are more words than weights; another `language`.
    Example:
        >>> weights = {"decoder": np.full((1, 2, 3), 1 / 3)}  # (B, T, S)
        >>> page = tfattn.plot.viewer(weights, ["the", "cat", "sleeps"], ["le", "chat"])
        >>> page.save("viewer.html")  # doctest: +SKIP
    """
    _checks.string(WHO, "title", title)
    if _checks.string(WHO, "language", language) not in ("en", "zh"):
        _checks.fail(WHO, "language", 'be "en" or "zh"', language)
    words = _words(source, target, target_in)
    views = _views(_matrices(weights), words)
    data = {"language": language, "words": words, "views": views}
    return Viewer(page.fill(page.read("viewer.html"), data, title))


def _words(
    source: Sequence[str], target: Sequence[str] | None, target_in: Sequence[str] | None
) -> dict[str, list[str]]:
    given = {"source": source, "target": target, "target_in": target_in}
    words = {
        argument: _checks.strings(WHO, argument, sentence)
        for argument, sentence in given.items()
        if sentence is not None or argument == "source"
    }
    for argument, sentence in words.items():
        if not sentence:
            _checks.fail(WHO, argument, "hold at least one word", sentence)
    if "target_in" in words and len(words["target_in"]) != len(words.get("target", [])):
        count = len(words.get("target", []))
        expected = f"have as many words as `target`, which has {count}"
        _checks.fail(WHO, "target_in", expected, words["target_in"])
    return words


def _matrices(weights: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """The weights of the first sentence of the batch, `(H, T, S)` by path."""
    letters = "(B, T, S) or (B, H, T, S)"
    if not isinstance(weights, Mapping) or not weights:
        expected = f"be a dict from path to an array {letters}, as from attention_weights"
        _checks.fail(WHO, "weights", expected, weights)
    matrices = {}
    for path, value in weights.items():
        argument = f"weights[{path!r}]"
        matrix = canvas.numbers(WHO, argument, value, (3, 4), letters)[0]
        wrong = matrix[~np.isfinite(matrix) | (matrix < 0)]
        if wrong.size:
            _checks.fail(WHO, argument, "hold finite numbers of at least 0", float(wrong[0]))
        matrices[str(path)] = matrix[np.newaxis] if matrix.ndim == 2 else matrix
    return matrices


def _views(matrices: dict[str, np.ndarray], words: dict[str, list[str]]) -> list[dict[str, Any]]:
    """The layers of each view, without padding."""
    target = "target" if "target" in words else "source"
    names = {"source": "source", "target": target}
    names["target_in"] = "target_in" if "target_in" in words else target
    kinds = _kinds(matrices, len(words["source"]), single="target" not in words)
    views: dict[tuple[str, str], dict[str, Any]] = {}
    for (path, matrix), kind in zip(matrices.items(), kinds, strict=True):
        names["learned"] = f"learned_{matrix.shape[1]}"
        queries, keys = (names[side] for side in VIEWS[kind])
        if kind == "pooling":
            words[queries] = [str(place) for place in range(matrix.shape[1])]
        for argument, size in ((queries, matrix.shape[1]), (keys, matrix.shape[2])):
            if len(words[argument]) > size:
                expected = f"have at most {size} words, to fit the weights of {path!r}"
                _checks.fail(WHO, argument, expected, words[argument])
        matrix = matrix[:, : len(words[queries]), : len(words[keys])]
        thousandths = np.rint(matrix * 1000).astype(int).reshape(len(matrix), -1)
        view = {"kind": kind, "queries": queries, "keys": keys, "layers": []}
        layers = views.setdefault((kind, queries), view)["layers"]
        layers.append({"path": path, "heads": thousandths.tolist()})
    order = list(VIEWS)
    return sorted(views.values(), key=lambda view: order.index(view["kind"]))


def _kinds(matrices: dict[str, np.ndarray], count: int, single: bool) -> list[str]:
    """The view of each layer, by size, else by path, else by order; `count` is of source words."""
    shapes = [matrix.shape[1:] for matrix in matrices.values()]
    if single:
        return [
            (_kind_by_path(path, single) or "self") if count <= rows <= columns else "pooling"
            for path, (rows, columns) in zip(matrices, shapes, strict=True)
        ]
    # Weights that are not square belong to cross-attention, and have both padded sizes.
    sizes = next((shape for shape in shapes if shape[0] != shape[1]), ())
    kinds: list[str | None] = []
    for path, shape in zip(matrices, shapes, strict=True):
        if shape[0] != shape[1]:
            kinds.append("cross")
        elif shape[0] in sizes:
            kinds.append("decoder" if shape[0] == sizes[0] else "encoder")
        else:
            kinds.append(_kind_by_path(path, single))
    if set(kinds) == {None} and len(kinds) % 3 == 0:
        third = len(kinds) // 3
        return ["encoder"] * third + ["decoder", "cross"] * third
    return [kind or "cross" for kind in kinds]


def _kind_by_path(path: str, single: bool) -> str | None:
    """The view of a path: "cross" for `a/decoder/block_0/cross_attention`."""
    *_, last = parts = path.lower().split("/")
    if "cross" in last or ("encoder" in last and "decoder" in last):
        return "cross"
    for part in reversed(parts):
        if "encoder" in part:
            return "encoder"
        if "decoder" in part:
            # The path of a recurrent decoder, which attends to the source only, ends here.
            return "decoder" if single or "self" in last else "cross"
    return None
