"""Beam search as an interactive page."""

from collections.abc import Callable, Sequence
from typing import Any

from tfattn import _checks
from tfattn.plot import page
from tfattn.plot.beams import Beam, read_trace
from tfattn.plot.viewer import Viewer

WHO = "beam_viewer"


def beam_viewer(
    trace: Any,
    words: Sequence[str] | Callable[[int], str],
    row: int = 0,
    left_out: int = 8,
    title: str = "Beams of a search",
) -> Viewer:
    """Beam search as an interactive page, step by step.

    The page shows the tree of `tfattn.plot.beam_tree` up to a step, and the kept and left-out
    candidates of the step, the best first. Point at a beam, tap it or move to it with Tab to show
    its text.

    Args:
        trace, words, row: see `tfattn.plot.beam_tree`.
        left_out: int of at least 0, the number of left-out candidates in the list.
        title: heading of the page.
    Returns:
        `Viewer`, with `save(path)`. A notebook displays it.
    Raises:
        ValueError: as in `tfattn.plot.beam_tree`.
    Example: with the trace and the words of the example of `tfattn.plot.beam_tree`.
        >>> tfattn.plot.beam_viewer(found.trace, words).save("beams.html")  # doctest: +SKIP
    """
    _checks.non_negative_int(WHO, "left_out", left_out)
    _checks.string(WHO, "title", title)
    steps = [
        {"beams": [_to_json(beam) for beam in beams], "others": [_to_json(beam) for beam in others]}
        for beams, others in read_trace(WHO, trace, words, row, left_out)
    ]
    return Viewer(page.filled("beams.html", steps, title), "Beam viewer")


def _to_json(beam: Beam) -> dict[str, Any]:
    return {**beam._asdict(), "score": round(beam.score, 3)}
