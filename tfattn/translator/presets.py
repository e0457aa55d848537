"""Model sizes and training settings."""

from typing import Any, NamedTuple

from tfattn.models.seq2seq import BahdanauSeq2Seq
from tfattn.models.transformer import Transformer

MODELS = {"transformer": Transformer, "bahdanau": BahdanauSeq2Seq}


class Phase(NamedTuple):
    """Consecutive epochs of a training run.

    Attributes:
        kind: kind of batches, one of `curriculum.KINDS`.
        epochs: number of epochs.
        peak: maximum learning rate. All phases of a training run share one schedule, which falls
            from this rate after `warmup` updates.
        cooldown: epochs at the end, during which the learning rate decays to zero.
    """

    kind: str
    epochs: int
    peak: float
    cooldown: int = 0


class Preset(NamedTuple):
    """The size of a model and its training settings.

    Attributes:
        sizes: arguments of the model besides its vocabulary sizes.
        subwords: size of a shared subword vocabulary; 0 for word vocabularies.
        tokens: maximum number of tokens on the longer side of a batch.
        phases: of the training, in order.
        warmup: updates during which the learning rate rises.
        ema_window: updates over which the averaged weights extend.
    """

    sizes: dict[str, Any]
    subwords: int
    tokens: int
    phases: tuple[Phase, ...]
    warmup: int
    ema_window: int

    @property
    def epochs(self) -> int:
        return sum(phase.epochs for phase in self.phases)


# Wu et al. 2021 ("Good for Misconceived Reasons"): 41.02 BLEU on the test set of 2016 of Multi30k,
# English to German.
_TINY = Preset(
    {"num_layers": 4, "width": 128, "num_heads": 4, "hidden_dim": 256, "dropout": 0.3},
    subwords=9900,
    tokens=4096,
    phases=(
        Phase("plain", 50, peak=0.005),
        Phase("bpe_dropout", 25, peak=0.005),
        Phase("plain", 20, peak=0.005, cooldown=15),
    ),
    warmup=2000,
    ema_window=500,
)

PRESETS = {
    "transformer": {
        "toy": Preset(
            {"num_layers": 2, "width": 128, "num_heads": 4, "hidden_dim": 256, "dropout": 0.1},
            subwords=0,
            tokens=768,
            phases=(Phase("plain", 5, peak=0.0018),),
            warmup=400,
            ema_window=100,
        ),
        "tiny": _TINY,
        # For --init, with the sizes of that model: a small rate keeps what it has learned.
        "finetune": Preset(
            {},
            subwords=0,
            tokens=2048,
            phases=(Phase("plain", 3, peak=0.0001, cooldown=1),),
            warmup=100,
            ema_window=100,
        ),
        # Vaswani et al. 2017, table 3, base.
        "base": Preset(
            {"num_layers": 6, "width": 512, "num_heads": 8, "hidden_dim": 2048, "dropout": 0.1},
            subwords=32_000,
            tokens=4096,
            phases=(Phase("plain", 20, peak=0.0007),),
            warmup=4000,
            ema_window=500,
        ),
    },
    "bahdanau": {
        "toy": Preset(
            {"width": 64, "units": 128, "dropout": 0.1},
            subwords=0,
            tokens=768,
            phases=(Phase("plain", 5, peak=0.003),),
            warmup=200,
            ema_window=100,
        ),
        "tiny": Preset(
            {"width": 128, "units": 256, "dropout": 0.4},
            subwords=9900,
            tokens=2048,
            phases=(Phase("plain", 28, peak=0.002, cooldown=6),),
            warmup=1000,
            ema_window=500,
        ),
        # The sizes of Bahdanau et al.: embeddings of 620, states of 1000.
        "base": Preset(
            {"dropout": 0.2},
            subwords=32_000,
            tokens=4096,
            phases=(Phase("plain", 20, peak=0.0007),),
            warmup=4000,
            ema_window=500,
        ),
    },
}
