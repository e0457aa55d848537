"""BLEU, by sacrebleu."""

from tfattn import _checks, _optional

__all__ = ["corpus_bleu"]


def corpus_bleu(hypotheses, references):
    """BLEU of tokenised sentences: geometric mean of the 1- to 4-gram precisions, times the brevity penalty.

    Args:
        hypotheses: list of strings, tokens split by spaces; compared as they are (sacrebleu with tokenize "none").
        references: as many strings, one reference a sentence.
    Returns:
        float in [0, 100].
    Raises:
        ValueError: the lists differ in length, or are empty.
        ImportError: sacrebleu is not installed.
    Example:
        >>> corpus_bleu(["a small cat sleeps ."], ["a small cat sleeps ."])
        100.0

    Source: Papineni et al. 2002; Post 2018, arXiv:1804.08771.
    """
    hypotheses, references = list(hypotheses), list(references)
    _checks.same_size("corpus_bleu", "hypotheses", len(hypotheses), "references", len(references))
    if not hypotheses:
        _checks.fail("corpus_bleu", "hypotheses", "hold at least one sentence", hypotheses)
    sacrebleu = _optional.find("sacrebleu", "text", "corpus_bleu")
    # `force` keeps sacrebleu from warning that the text looks tokenised, which it is.
    return round(sacrebleu.metrics.BLEU(tokenize="none", force=True).corpus_score(hypotheses, [references]).score, 6)
