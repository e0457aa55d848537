"""Model sizes and training settings."""

from typing import NamedTuple

from tfattn.models.seq2seq import BahdanauSeq2Seq
from tfattn.models.transformer import Transformer

MODELS = {"transformer": Transformer, "bahdanau": BahdanauSeq2Seq}


class Preset(NamedTuple):
    """The size of a model and its training settings.

    Attributes:
        sizes: arguments of the model besides its vocabulary sizes.
        subwords: size of a shared subword vocabulary; 0 for word vocabularies.
        tokens: maximum number of tokens on the longer side of a batch.
        epochs: number of epochs.
        peak: maximum learning rate, reached after `warmup` updates.
        ema_window: updates over which the averaged weights extend.
        cooldown: epochs at the end, during which the learning rate decays to zero.
        curriculum: consecutive phases, as pairs of one of `curriculum.KINDS` and the epoch at
            the phase's end; the epochs after the last phase are "plain".
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
        # Resumes a run of "tiny", or starts a new run.
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
        # The sizes of Bahdanau et al.: embeddings of 620, states of 1000.
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
