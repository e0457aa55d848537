"""BLEU by sacrebleu, for lists of sentences and for a model during training."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import keras

from tfattn import _checks, _optional


def corpus_bleu(hypotheses: Iterable[str], references: Iterable[str]) -> float:
    """BLEU of tokenized sentences.

        BLEU = 100 · brevity penalty · geometric mean of the 1- to 4-gram precisions

    Args:
        hypotheses: list of strings, tokens separated by spaces; compared without further
            tokenization (sacrebleu with tokenize "none").
        references: list of strings, one per hypothesis.
    Returns:
        float in [0, 100].
    Raises:
        ValueError: the lists differ in length, are empty, or contain anything but strings.
        ImportError: sacrebleu is not installed.
    Example:
        >>> corpus_bleu(["a small cat sleeps ."], ["a small cat sleeps ."])
        100.0

    Source: Papineni et al. 2002; Post 2018, arXiv:1804.08771.
    """
    references = _checks.strings("corpus_bleu", "references", references)
    hypotheses = _checks.strings("corpus_bleu", "hypotheses", hypotheses)
    if len(hypotheses) != len(references) or not references:
        expected = f"hold a sentence for each of the {len(references)} references, and at least one"
        _checks.fail("corpus_bleu", "hypotheses", expected, len(hypotheses))
    sacrebleu = _optional.find("sacrebleu", "text", "corpus_bleu")
    # `force` disables sacrebleu's warning about tokenized text.
    metric = sacrebleu.metrics.BLEU(tokenize="none", force=True)
    return round(metric.corpus_score(hypotheses, [references]).score, 6)


class ValidationBleu(keras.callbacks.Callback):
    """Adds BLEU of the model's translations of held-out sentences to the logs of an epoch.

    `BestWeights` and `EarlyStopping` can monitor it if this callback comes before them.

    Args:
        translate: function `translate(model, sources)` that returns the translations, one string
            per source, in order.
        sources: list of sentences in the form that `translate` takes.
        references: list of strings, one per source, tokens separated by spaces.
        every: positive int n: BLEU is computed after the first and the last epoch of `fit`, and
            after epochs n, 2n, and so on, counted from 1. Other epochs have NaN, which is never
            taken for better. Defaults to 1.
        name: name in the logs. Defaults to "val_bleu".
    Raises:
        ValueError: `references` contains anything but strings; `every` is not a positive int; in
            `fit`, there are no sentences, or not one translation per reference.
        ImportError: sacrebleu is not installed.
    Example:
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x, sentences = np.ones((3, 1)), ["a small cat sleeps"]
        >>> echo = ValidationBleu(lambda model, sources: sources, sentences, sentences)
        >>> model.fit(x, x, callbacks=[echo], verbose=0).history["val_bleu"]
        [100.0]
    """

    def __init__(
        self,
        translate: Callable[[keras.Model, list[Any]], Iterable[str]],
        sources: Iterable[Any],
        references: Iterable[str],
        every: int = 1,
        name: str = "val_bleu",
    ):
        super().__init__()
        self.translate, self.sources, self.name = translate, list(sources), name
        self.references = _checks.strings("ValidationBleu", "references", references)
        self.every = _checks.positive_int("ValidationBleu", "every", every)
        _optional.find("sacrebleu", "text", "ValidationBleu")  # fail early

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        first = not self.model.history.history.get(self.name)
        last = epoch + 1 == self.params.get("epochs")
        if first or last or (epoch + 1) % self.every == 0:
            logs[self.name] = corpus_bleu(self.translate(self.model, self.sources), self.references)
        else:
            logs[self.name] = math.nan
