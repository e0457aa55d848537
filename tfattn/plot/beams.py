"""Beam search as a tree."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from tfattn import _checks, _optional
from tfattn.plot import canvas

WHO = "beam_tree"
ARRAYS = ("tokens", "parents", "scores", "ended", "died")
CANDIDATES = ("candidate_tokens", "candidate_parents", "candidate_scores", "kept")

# Inches: between beams, between steps, above and left of beams, between left-out candidates.
ROW, GAP, TOP, MARGIN, LINE = 0.46, 0.5, 0.42, 0.55, 0.21
KEPT, DEAD, BEST, LEFT_OUT = canvas.COLORS[0], "0.62", canvas.COLORS[1], "0.6"


class Beam(NamedTuple):
    """A beam after a step, or a candidate that was left out."""

    word: str  # "" if the hypothesis was complete before
    parent: int  # index of the beam at the previous step
    score: float
    ended: bool = False
    died: bool = False  # whether it has no successor
    best: bool = False  # whether it is on the path to the best result


def beam_tree(
    trace: Any,
    words: Sequence[str] | Callable[[int], str],
    row: int = 0,
    left_out: int = 2,
    title: str | None = None,
    ax: canvas.Axes | None = None,
) -> canvas.Figure:
    """Beam search as a tree, from left to right.

    A column is a step, and its rows are the kept beams, each with its token and score. The path to
    the best result is orange. Beams without successors are gray. Below the beams, in light gray,
    are the best candidates that were left out. A dotted line is a complete hypothesis that is still
    among the best.

    Args:
        trace: trace of `BeamSearch(..., return_trace=True)`.
        words: the words by id, such as `vocabulary.words`; or a function from an id to its word.
        row: int of at least 0, the sentence of the batch.
        left_out: int of at least 0, the number of left-out candidates per step.
        title: a string above the tree.
        ax: matplotlib axes to draw into. Defaults to those of a new figure.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: `trace` is not a trace; `words` lacks a token; `row` is outside the batch.
    Example:
        >>> odds = np.log([[1e-9, 1e-9, 1e-9, 0.2, 0.5, 0.3]]).astype("float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(odds, 0 * tokens[:, 0], axis=0), state
        >>> found = BeamSearch(num_beams=2, return_trace=True)(step, (), 1, 3)
        >>> words = ["<pad>", "<unk>", "<bos>", "<eos>", "a", "b"]
        >>> figure = tfattn.plot.beam_tree(found.trace, words)
    """
    _checks.non_negative_int(WHO, "left_out", left_out)
    canvas.check_title(WHO, title)
    steps = read_trace(WHO, trace, words, row, left_out)
    widths = [_width(beams + others) for beams, others in steps]
    starts = np.cumsum([MARGIN + GAP, *(width + GAP for width in widths)])
    places = [start + width / 2 for start, width in zip(starts, widths, strict=False)]
    num_beams = max(len(beams) for beams, _ in steps)
    num_others = max(len(others) for _, others in steps)
    below = TOP + num_beams * ROW
    width = max(starts[-1], canvas.LETTER * 1.25 * canvas.letters(title or ""))
    height = below + num_others * LINE
    axes = canvas.axes_of(WHO, ax, width + 0.2, height + (0.45 if title else 0.2))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    axes.set_title(title or "", fontsize=canvas.MEDIUM)
    _write(axes, (MARGIN - 0.06, TOP), "begin", "0.35", canvas.SMALL, ha="right")
    if num_others:
        _write(axes, (MARGIN - 0.06, below), "left out", LEFT_OUT, canvas.SMALL - 1, ha="right")
    before = {0: (MARGIN, TOP)}  # start of lines, by beam
    for number, (beams, others) in enumerate(steps):
        center, half = places[number], widths[number] / 2
        _write(axes, (center, 0.08), f"step {number + 1}", "0.55", canvas.SMALL - 1)
        after = {}
        for at, beam in enumerate(beams):
            y = TOP + at * ROW
            color = BEST if beam.best else DEAD if beam.died else KEPT
            style = "-" if beam.word else ":"
            strong = 1.8 if beam.best else 1.0
            end = center + half if not beam.word else center - half
            _line(axes, before[beam.parent], (end, y), color, strong, style)
            if beam.word:
                _box(axes, (center, y), 2 * half, beam, color)
            after[at] = (center + half, y)
        for at, beam in enumerate(others):
            y = below + at * LINE
            score = canvas.written(beam.score, ".2f")
            _write(axes, (center, y), f"{beam.word} {score}", LEFT_OUT, canvas.SMALL - 1)
        before = after
    return canvas.finished(axes)


def read_trace(
    who: str, trace: Any, words: Any, row: int, left_out: int
) -> list[tuple[list[Beam], list[Beam]]]:
    """The beams and the best left-out candidates of each step."""
    arrays = _arrays(who, trace, row)
    word = _by_id(who, words)
    steps = int((arrays["scores"] > -np.inf).any(axis=1).sum())
    if not steps:
        _checks.fail(who, "trace", f"have a beam in row {row}", arrays["scores"].tolist())
    best = _best_path(arrays, steps)
    # Rows of existing beams are consecutive.
    found, places = [], {0: 0}
    for step in range(steps):
        tokens, parents, scores, ended = (arrays[name][step] for name in ARRAYS[:4])
        dies = arrays["died"][step + 1] if step + 1 < steps else np.zeros(len(tokens), bool)
        exist = np.flatnonzero(scores > -np.inf)
        beams = [
            Beam(
                "" if step and arrays["ended"][step - 1][parents[k]] else word(tokens[k]),
                places[parents[k]],
                float(scores[k]),
                bool(ended[k]),
                bool(dies[k]),
                bool(best[step] == k),
            )
            for k in exist
        ]
        tokens, parents, scores, kept = (arrays[name][step] for name in CANDIDATES)
        left = np.flatnonzero(~kept & (scores > -np.inf))
        left = left[np.argsort(-scores[left], kind="stable")][:left_out]
        others = [
            Beam(
                _word_of_candidate(word, step, arrays, parents[m], tokens[m]),
                places[parents[m]],
                float(scores[m]),
                died=True,
            )
            for m in left
        ]
        found.append((beams, others))
        places = {beam: place for place, beam in enumerate(exist.tolist())}
    return found


def _word_of_candidate(
    word: Callable[[int], str], step: int, arrays: dict[str, np.ndarray], parent: int, token: int
) -> str:
    """The word of a candidate; for a complete hypothesis, its end token."""
    while step and arrays["ended"][step - 1][parent]:
        token, step = arrays["tokens"][step - 1][parent], step - 1
        parent = arrays["parents"][step][parent]
    return word(token)


def _arrays(who: str, trace: Any, row: int) -> dict[str, np.ndarray]:
    expected = "be a trace of BeamSearch(..., return_trace=True)"
    _checks.non_negative_int(who, "row", row)
    arrays = {}
    for name in (*ARRAYS, *CANDIDATES):
        try:
            array = ops.convert_to_numpy(getattr(trace, name))
        except AttributeError:
            _checks.fail(who, "trace", expected, trace)
        if array.ndim != 3:
            _checks.fail(who, "trace", expected, trace)
        if row >= len(array):
            _checks.fail(who, "row", f"be below the batch size of `trace`, {len(array)}", row)
        arrays[name] = array[row]
    return arrays


def _by_id(who: str, words: Any) -> Callable[[int], str]:
    if callable(words):
        return lambda token: str(words(int(token)))
    words = _checks.strings(who, "words", words)

    def word(token: int) -> str:
        if token >= len(words):
            _checks.fail(who, "words", f"have a word for each token, including {token}", len(words))
        return words[token]

    return word


def _best_path(arrays: dict[str, np.ndarray], steps: int) -> list[int]:
    """The beam at each step of the best result."""
    scores = arrays["scores"][steps - 1]
    complete = np.where(arrays["ended"][steps - 1], scores, -np.inf)
    at = int(np.argmax(complete if complete.max() > -np.inf else scores))
    path = []
    for step in reversed(range(steps)):
        path.append(at)
        at = int(arrays["parents"][step][at])
    return path[::-1]


def _width(beams: list[Beam]) -> float:
    longest = canvas.longest(beam.word for beam in beams)
    return max(0.5, canvas.LETTER * 1.15 * longest + 0.16)


def _write(
    axes: canvas.Axes,
    place: tuple[float, float],
    words: str,
    color: str,
    size: float,
    ha: str = "center",
) -> None:
    options = {"ha": ha, "va": "center", "color": color, "fontsize": size}
    axes.text(*place, words, parse_math=False, **options)


def _box(
    axes: canvas.Axes, place: tuple[float, float], width: float, beam: Beam, color: str
) -> None:
    """Draws a token and the score of its beam."""
    patches = _optional.find("matplotlib.patches", "plot", WHO)
    x, y = place
    box = patches.FancyBboxPatch(
        (x - width / 2, y - 0.15),
        width,
        0.3,
        boxstyle="round,pad=0,rounding_size=0.05",
        facecolor="white",
        edgecolor=color,
        linewidth=1.6 if beam.ended or beam.best else 0.9,
        zorder=3,
    )
    axes.add_patch(box)
    text = {"ha": "center", "va": "center", "zorder": 4}
    ink = "0.45" if beam.died else "0.1"
    axes.text(
        x, y - 0.055, beam.word, fontsize=canvas.SMALL + 1, color=ink, parse_math=False, **text
    )
    score = canvas.written(beam.score, ".2f")
    axes.text(x, y + 0.085, score, fontsize=canvas.SMALL - 2.5, color="0.45", **text)


def _line(
    axes: canvas.Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    color: str,
    width: float,
    style: str,
) -> None:
    """Draws a curve from a beam to its successor."""
    paths = _optional.find("matplotlib.path", "plot", WHO)
    patches = _optional.find("matplotlib.patches", "plot", WHO)
    (x, y), (to_x, to_y) = start, end
    bend = x + GAP / 2
    points = [(x, y), (bend, y), (bend, to_y), (x + GAP, to_y), (to_x, to_y)]
    codes = [paths.Path.MOVETO, *[paths.Path.CURVE4] * 3, paths.Path.LINETO]
    options = {"edgecolor": color, "linewidth": width, "linestyle": style, "facecolor": "none"}
    axes.add_patch(patches.PathPatch(paths.Path(points, codes), zorder=2, **options))
