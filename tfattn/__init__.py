"""Attention layers for TensorFlow and Keras 3, from kernel regression to a Transformer.

Each layer computes a weighted mean of the values:

    weights = softmax of score(query, key), over the keys that the mask allows
    output  = weights · values
"""

from tfattn import _program  # noqa: F401, before any import of TensorFlow

# isort: split
import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from tfattn import kernel_regression, training
from tfattn.core import biases, kernels, masks, normalizers
from tfattn.core.attend import attend
from tfattn.core.engine.scope import attention_path
from tfattn.core.merging import merge_attentions
from tfattn.core.softmax import masked_softmax
from tfattn.decoding import (
    BeamSearch,
    GreedySearch,
    Sampling,
    rules,
    translate,
    translate_stream,
)
from tfattn.examples import load_example
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.attention.normalizers import (
    AttentionSinks,
    Normalizer,
    Sparsemax,
    TopKSoftmax,
)
from tfattn.layers.attention.pooling import AttentionPooling
from tfattn.layers.attention.scores import (
    AdditiveScore,
    BilinearScore,
    CosineScore,
    DotProductScore,
    KernelScore,
    NormalizedDotProductScore,
    Score,
    SoftCapScore,
)
from tfattn.layers.attention.single_head import (
    AdditiveAttention,
    Attention,
    BilinearAttention,
    DotProductAttention,
    NadarayaWatson,
)
from tfattn.layers.attention.weights import attention_weights
from tfattn.layers.positions import scalings
from tfattn.layers.positions.added import LearnedPositionalEncoding, SinusoidalPositionalEncoding
from tfattn.layers.positions.base import AlibiPositions, HeadPositions, RelativePositionBias
from tfattn.layers.positions.rotary import RotaryPositions
from tfattn.layers.recurrent.decoder import RecurrentDecoder
from tfattn.layers.recurrent.encoder import RecurrentEncoder
from tfattn.layers.transformer.block import TransformerEncoderBlock
from tfattn.layers.transformer.decoder_block import TransformerDecoderBlock
from tfattn.layers.transformer.feed_forward import GatedFeedForward, PositionwiseFeedForward
from tfattn.layers.transformer.norm import AddNorm
from tfattn.models.language_model import CausalLM
from tfattn.models.seq2seq import BahdanauSeq2Seq
from tfattn.models.stacks import TransformerDecoder, TransformerEncoder
from tfattn.models.transformer import Transformer
from tfattn.training.losses import MaskedCrossentropy
from tfattn.training.metrics import MaskedAccuracy
from tfattn.training.schedules import InverseSquareRootSchedule, TransformerSchedule

if TYPE_CHECKING:
    from tfattn import convert, data, interpret, plot

__version__ = "0.1.0"

__all__ = [
    "AddNorm",
    "AdditiveAttention",
    "AdditiveScore",
    "AlibiPositions",
    "Attention",
    "AttentionPooling",
    "AttentionSinks",
    "BahdanauSeq2Seq",
    "BeamSearch",
    "BilinearAttention",
    "BilinearScore",
    "CausalLM",
    "CosineScore",
    "DotProductAttention",
    "DotProductScore",
    "GatedFeedForward",
    "GreedySearch",
    "HeadPositions",
    "InverseSquareRootSchedule",
    "KernelScore",
    "LearnedPositionalEncoding",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "MultiHeadAttention",
    "NadarayaWatson",
    "NormalizedDotProductScore",
    "Normalizer",
    "PositionwiseFeedForward",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "RelativePositionBias",
    "RotaryPositions",
    "Sampling",
    "Score",
    "SinusoidalPositionalEncoding",
    "SoftCapScore",
    "Sparsemax",
    "TopKSoftmax",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderBlock",
    "TransformerEncoder",
    "TransformerEncoderBlock",
    "TransformerSchedule",
    "attend",
    "attention_path",
    "attention_weights",
    "biases",
    "convert",
    "data",
    "interpret",
    "kernel_regression",
    "kernels",
    "load_example",
    "masked_softmax",
    "masks",
    "merge_attentions",
    "normalizers",
    "plot",
    "rules",
    "scalings",
    "training",
    "translate",
    "translate_stream",
]


def __getattr__(name: str) -> ModuleType:
    """Modules without layers are imported when they are first used: that halves the import time."""
    if name in ("convert", "data", "interpret", "plot"):
        return importlib.import_module(f"tfattn.{name}")
    raise AttributeError(f"module 'tfattn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
