"""BLEU, by sacrebleu: of two lists of sentences, and of a model while it trains."""

import keras

from tfattn import _checks, _optional

__all__ = ["ValidationBleu", "corpus_bleu"]


def corpus_bleu(hypotheses, references):
    """BLEU of tokenised sentences: geometric mean of the 1- to 4-gram precisions, times the brevity
    penalty.

    Args:
        hypotheses: list of strings, tokens split by spaces; compared as they are (sacrebleu with
            tokenize "none").
        references: as many strings, one reference a sentence.
    Returns:
        float in [0, 100].
    Raises:
        ValueError: the lists differ in length, are empty, or hold something else than strings.
        ImportError: sacrebleu is not installed.
    Example:
        >>> corpus_bleu(["a small cat sleeps ."], ["a small cat sleeps ."])
        100.0

    Source: Papineni et al. 2002; Post 2018, arXiv:1804.08771.
    """
    who = "corpus_bleu"
    references = _checks.strings(who, "references", references)
    hypotheses = _checks.strings(who, "hypotheses", hypotheses)
    _checked_number(who, "hypotheses", hypotheses, "references", references)
    sacrebleu = _optional.find("sacrebleu", "text", "corpus_bleu")
    # `force` keeps sacrebleu from warning that the text looks tokenised, which it is.
    return round(
        sacrebleu.metrics.BLEU(tokenize="none", force=True)
        .corpus_score(hypotheses, [references])
        .score,
        6,
    )


class ValidationBleu(keras.callbacks.Callback):
    """BLEU of the model's translations of held-out sentences, at the end of an epoch.

    It joins the epoch's logs, so that the progress bar and the history show it, and
    `ModelCheckpoint` and `EarlyStopping` can monitor it (`mode="max"`): pass it before them.

    Args:
        translate: function of the model and `sources` that returns the translations, one string a
            source, in order.
        sources: list of sentences in the form that `translate` takes.
        references: as many strings, tokens split by spaces, as in `corpus_bleu`.
        every: positive int n: after the first epoch and the last of `epochs`, and after epochs n,
            2n, 3n and so on, counted from 1. Between them the last value stands, so that whoever
            monitors it always finds one.
        name: its name in the logs.
    Raises:
        ValueError: `translate` cannot be called; there are no `sources`; `references` are not as
            many, or no strings; `every` is no positive int.
        ImportError: sacrebleu is not installed.
    Example:
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> echo = ValidationBleu(lambda model, sources: sources, ["a small cat sleeps"], ["a small cat sleeps"])
        >>> model.fit(np.ones((3, 1)), np.ones((3, 1)), callbacks=[echo], verbose=0).history["val_bleu"]
        [100.0]
    """

    def __init__(self, translate, sources, references, every=1, name="val_bleu"):
        super().__init__()
        if not callable(translate):
            _checks.fail("ValidationBleu", "translate", "be callable", translate)
        self.translate, self.sources = translate, list(sources)
        self.references = _checks.strings("ValidationBleu", "references", references)
        _checked_number("ValidationBleu", "references", self.references, "sources", self.sources)
        self.every = _checks.positive_int("ValidationBleu", "every", every)
        self.name = name
        _optional.find("sacrebleu", "text", "ValidationBleu")  # now, and not after an epoch

    def on_epoch_end(self, epoch, logs=None):
        earlier = self.model.history.history.get(self.name)
        last = epoch + 1 == self.params.get("epochs")
        if not earlier or last or (epoch + 1) % self.every == 0:
            logs[self.name] = corpus_bleu(self.translate(self.model, self.sources), self.references)
        else:
            logs[self.name] = earlier[-1]


def _checked_number(who, argument, sentences, other_name, others):
    if not others:
        _checks.fail(who, other_name, "hold at least one sentence", others)
    if len(sentences) != len(others):
        _checks.fail(
            who,
            argument,
            f"hold a sentence for each of the {len(others)} {other_name}",
            len(sentences),
        )
