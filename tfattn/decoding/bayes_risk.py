"""Minimum Bayes risk: the sample that is most similar to the other samples."""

import collections
from collections.abc import Iterable

from tfattn import _checks, _optional
from tfattn.decoding.translation import ScoredText

__all__ = ["minimum_bayes_risk"]


def minimum_bayes_risk(samples: Iterable[str]) -> list[ScoredText]:
    """The distinct samples of one translation, from the least risk to the greatest.

        score(y) = 1/(N - 1) · Σ chrF(y, y')        over the other N - 1 samples y'

    The score estimates the expected chrF of a translation, with samples of the model in place of
    unknown references. A text that was drawn k times counts k times.

    Args:
        samples: iterable of str, the translations of one sentence, such as samples by `Sampling`.
    Returns:
        A list of pairs `(text, score)`, scores from 0 to 100; equal scores in the order drawn.
        The score of a single sample is 0.
    Raises:
        ValueError: `samples` is empty, a single string, or contains an object that is not a string.
        ImportError: sacrebleu is not installed.
    Example:
        >>> best, *_ = tfattn.decoding.minimum_bayes_risk(["a bird", "the birds", "a bird sings"])
        >>> best.text
        'a bird sings'

    Source: Kumar, Byrne 2004; Eikema, Aziz 2020, arXiv:2005.10283, for samples of a model.
    """
    who = "minimum_bayes_risk"
    samples = _checks.strings(who, "samples", samples)
    if not samples:
        _checks.fail(who, "samples", "hold at least one text", samples)
    chrf = _optional.find("sacrebleu", "text", who).metrics.CHRF()
    counts = collections.Counter(samples)
    found = []
    for text in counts:
        scores = {other: chrf.sentence_score(text, [other]).score for other in counts}
        total = sum(count * scores[other] for other, count in counts.items()) - scores[text]
        found.append(ScoredText(text, total / max(1, len(samples) - 1)))
    return sorted(found, key=lambda each: -each.score)
