"""Side floor: losses, metrics and schedules. Knows no layer and no model."""

from tfattn.training.bleu import corpus_bleu
from tfattn.training.losses import MaskedCrossentropy
from tfattn.training.metrics import MaskedAccuracy
from tfattn.training.schedules import TransformerSchedule

__all__ = ["MaskedAccuracy", "MaskedCrossentropy", "TransformerSchedule", "corpus_bleu"]
