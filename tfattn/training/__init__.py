"""Losses, metrics, learning-rate schedules and callbacks for sequence models, on any devices."""

from tfattn.training.averaging import AveragedWeights
from tfattn.training.backup import Backup
from tfattn.training.best_weights import BestWeights
from tfattn.training.bleu import ValidationBleu, corpus_bleu
from tfattn.training.layouts import transformer_layout
from tfattn.training.losses import MaskedCrossentropy
from tfattn.training.metrics import MaskedAccuracy
from tfattn.training.schedules import Cooldown, InverseSquareRootSchedule, TransformerSchedule

__all__ = [
    "AveragedWeights",
    "Backup",
    "BestWeights",
    "Cooldown",
    "InverseSquareRootSchedule",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "TransformerSchedule",
    "ValidationBleu",
    "corpus_bleu",
    "transformer_layout",
]
