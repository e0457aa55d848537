"""Model sizes and training settings."""

from typing import Any, NamedTuple

import keras

from tfattn import training
from tfattn.models.seq2seq import BahdanauSeq2Seq
from tfattn.models.transformer import Transformer

MODELS = {"transformer": Transformer, "bahdanau": BahdanauSeq2Seq}


class Preset(NamedTuple):
    """The size of a model and its training settings."""

    sizes: dict[str, Any]  # arguments of the model besides its vocabulary sizes
    subwords: int  # size of a shared subword vocabulary; 0 for word vocabularies
    tokens: int  # maximum number of tokens on the longer side of a batch
    epochs: int
    peak: float  # maximum learning rate, from which it falls after `warmup` updates
    warmup: int  # updates during which the learning rate rises
    ema_window: int  # updates over which the averaged weights extend
    cooldown: int = 0  # epochs at the end, during which the learning rate decays to zero
    # The first epoch, counted from 0, with BPE dropout, and the first one without it again.
    bpe_dropout: tuple[int, int] = (0, 0)

    def learning_rate(self, updates: list[int]) -> keras.optimizers.schedules.LearningRateSchedule:
        """The schedule of epochs with so many updates each."""
        rate = training.InverseSquareRootSchedule(self.peak, self.warmup)
        cooled = sum(updates[-self.cooldown :]) if self.cooldown else 0
        return training.Cooldown(rate, sum(updates) - cooled, cooled) if cooled else rate


# The settings of training that both models share.
_TOY = Preset({}, subwords=0, tokens=768, epochs=5, peak=0.0018, warmup=400, ema_window=100)
_TINY = Preset(
    {}, subwords=9900, tokens=4096, epochs=95, peak=0.005, warmup=2000, ema_window=500, cooldown=15
)
_BASE = Preset(
    {}, subwords=32_000, tokens=4096, epochs=20, peak=0.0007, warmup=4000, ema_window=500
)
# For --init, with the sizes of that model: a small rate keeps what it has learned.
_FINETUNE = _TOY._replace(tokens=2048, epochs=3, peak=0.0001, warmup=100, cooldown=1)
_SMALL = {"width": 128, "num_heads": 4, "hidden_dim": 256}

PRESETS = {
    "transformer": {
        "toy": _TOY._replace(sizes={"num_layers": 2, **_SMALL, "dropout": 0.1}),
        # Wu et al. 2021 ("Good for Misconceived Reasons"): 41.02 BLEU on test_2016 of Multi30k.
        "tiny": _TINY._replace(
            sizes={"num_layers": 4, **_SMALL, "dropout": 0.3}, bpe_dropout=(50, 75)
        ),
        "finetune": _FINETUNE,
        # Vaswani et al. 2017, table 3, base: the defaults of `Transformer`.
        "base": _BASE._replace(sizes={"dropout": 0.1}),
    },
    "bahdanau": {
        "toy": _TOY._replace(
            sizes={"width": 64, "units": 128, "dropout": 0.1}, peak=0.003, warmup=200
        ),
        "tiny": _TINY._replace(
            sizes={"width": 128, "units": 256, "dropout": 0.4},
            tokens=2048,
            epochs=28,
            peak=0.002,
            warmup=1000,
            cooldown=6,
        ),
        "finetune": _FINETUNE,
        # The sizes of Bahdanau et al.: embeddings of 620, states of 1000.
        "base": _BASE._replace(sizes={"dropout": 0.2}),
    },
}
