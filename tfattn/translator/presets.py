"""Sizes of the models, and how each is trained."""

from typing import NamedTuple

from tfattn.models.seq2seq import BahdanauSeq2Seq
from tfattn.models.transformer import Transformer

__all__ = ["MODELS", "PRESETS", "Preset"]

MODELS = {"transformer": Transformer, "bahdanau": BahdanauSeq2Seq}


class Preset(NamedTuple):
    """One size of a model, and how it is trained.

    Attributes:
        sizes: what the model is called with, beside the sizes of its vocabularies.
        subwords: entries of a joint vocabulary of subwords; 0 stands for whole words.
        tokens: of a batch, on its longer side.
        epochs: of the training.
        peak: the highest learning rate, reached after `warmup` updates.
        ema_window: updates that the averaged weights stand for.
        cooldown: epochs at the end in which the rate goes down to zero.
        curriculum: pairs of one of `curriculum.KINDS` and the epoch that ends it, one after
            another; after the last of them all is "plain".
    """

    sizes: dict
    subwords: int
    tokens: int
    epochs: int
    peak: float
    warmup: int
    ema_window: int
    cooldown: int = 0
    curriculum: tuple[tuple[str, int], ...] = ()


# Wu et al. 2021 ("Good for Misconceived Reasons"): 41.02 BLEU on the test set of 2016 of Multi30k,
# English to German.
_TINY = Preset(
    {"num_layers": 4, "width": 128, "num_heads": 4, "hidden_dim": 256, "dropout": 0.3},
    subwords=9900,
    tokens=4096,
    epochs=95,
    peak=0.005,
    warmup=2000,
    ema_window=500,
    cooldown=15,
    curriculum=(("plain", 50), ("bpe_dropout", 75)),
)

PRESETS = {
    "transformer": {
        "toy": Preset(
            {"num_layers": 2, "width": 128, "num_heads": 4, "hidden_dim": 256, "dropout": 0.1},
            subwords=0,
            tokens=768,
            epochs=5,
            peak=0.0018,
            warmup=400,
            ema_window=100,
        ),
        "tiny": _TINY,
        # Goes on with a run of "tiny", or is a run of its own.
        "tiny-simcut": _TINY._replace(
            epochs=_TINY.epochs + 20,
            curriculum=(*_TINY.curriculum, ("plain", _TINY.epochs), ("simcut", _TINY.epochs + 20)),
        ),
        # Vaswani et al. 2017, table 3, base.
        "base": Preset(
            {"num_layers": 6, "width": 512, "num_heads": 8, "hidden_dim": 2048, "dropout": 0.1},
            subwords=32_000,
            tokens=4096,
            epochs=20,
            peak=0.0007,
            warmup=4000,
            ema_window=500,
        ),
    },
    "bahdanau": {
        "toy": Preset(
            {"width": 64, "units": 128, "dropout": 0.1},
            subwords=0,
            tokens=768,
            epochs=5,
            peak=0.003,
            warmup=200,
            ema_window=100,
        ),
        "tiny": Preset(
            {"width": 128, "units": 256, "dropout": 0.4},
            subwords=9900,
            tokens=2048,
            epochs=28,
            peak=0.002,
            warmup=1000,
            ema_window=500,
            cooldown=6,
        ),
        # The paper's sizes: embeddings of 620, states of 1000.
        "base": Preset(
            {"dropout": 0.2},
            subwords=32_000,
            tokens=4096,
            epochs=20,
            peak=0.0007,
            warmup=4000,
            ema_window=500,
        ),
    },
}
