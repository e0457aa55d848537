"""What the beams of a search did, as an interactive page."""

from collections.abc import Callable, Sequence
from typing import Any

from tfattn import _checks
from tfattn.plot import page
from tfattn.plot.beams import Beam, read_trace
from tfattn.plot.viewer import Viewer

__all__ = ["beam_viewer"]

WHO = "beam_viewer"


def beam_viewer(
    trace: Any,
    words: Sequence[str] | Callable[[int], str],
    row: int = 0,
    left_out: int = 8,
    title: str = "What the beams did",
) -> Viewer:
    """What a beam search did, as an interactive page that goes step by step.

    The tree of `tfattn.plot.beam_tree` grows with each step. Beside it stand the candidates of the
    step, the best first, those that were kept and those that were left out. Point at a beam, tap it
    or move to it with Tab: the page shows the text that it stands for.

    Args:
        trace, words, row: see `tfattn.plot.beam_tree`.
        left_out: int of at least 0, how many of the candidates that were left out are listed.
        title: heading of the page.
    Returns:
        `Viewer`, with `save(path)`. A notebook displays it.
    Raises:
        ValueError: as `tfattn.plot.beam_tree` does.
    Example:
        >>> odds = np.log([[1e-9, 1e-9, 1e-9, 0.2, 0.5, 0.3]]).astype("float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(odds, 0 * tokens[:, 0], axis=0), state
        >>> found = BeamSearch(num_beams=2, return_trace=True)(step, (), 1, 3)
        >>> words = ["<pad>", "<unk>", "<bos>", "<eos>", "a", "b"]
        >>> page = tfattn.plot.beam_viewer(found.trace, words)
        >>> page.save("beams.html")  # doctest: +SKIP
    """
    _checks.non_negative_int(WHO, "left_out", left_out)
    _checks.string(WHO, "title", title)
    steps = [
        {"beams": [_told(beam) for beam in beams], "others": [_told(beam) for beam in others]}
        for beams, others in read_trace(WHO, trace, words, row, left_out)
    ]
    return Viewer(page.filled("beams.html", steps, title), "Beam viewer")


def _told(beam: Beam) -> dict:
    return {**beam._asdict(), "score": round(beam.score, 3)}
