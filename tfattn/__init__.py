"""Attention layers for TensorFlow and Keras 3, from kernel regression to a Transformer.

Each layer computes a weighted mean of the values:

    weights = softmax of score(query, key), over the keys that the mask allows
    output  = weights · values
"""

from tfattn import _program  # noqa: F401, before any import of TensorFlow

# isort: split
import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

from tfattn import kernel_regression as kernel_regression
from tfattn import training as training
from tfattn.core import biases as biases
from tfattn.core import kernels as kernels
from tfattn.core import masks as masks
from tfattn.core import normalizers as normalizers
from tfattn.core.attend import attend as attend
from tfattn.core.engine.dispatch import attention_path as attention_path
from tfattn.core.merging import merge_attentions as merge_attentions
from tfattn.core.softmax import masked_softmax as masked_softmax
from tfattn.decoding import BeamSearch as BeamSearch
from tfattn.decoding import GreedySearch as GreedySearch
from tfattn.decoding import Sampling as Sampling
from tfattn.decoding import rules as rules
from tfattn.decoding import translate as translate
from tfattn.decoding import translate_stream as translate_stream
from tfattn.examples import load_example as load_example
from tfattn.layers.attention.multi_head import MultiHeadAttention as MultiHeadAttention
from tfattn.layers.attention.normalizers import AttentionSinks as AttentionSinks
from tfattn.layers.attention.normalizers import Normalizer as Normalizer
from tfattn.layers.attention.normalizers import Sparsemax as Sparsemax
from tfattn.layers.attention.normalizers import TopKSoftmax as TopKSoftmax
from tfattn.layers.attention.pooling import AttentionPooling as AttentionPooling
from tfattn.layers.attention.scores import AdditiveScore as AdditiveScore
from tfattn.layers.attention.scores import BilinearScore as BilinearScore
from tfattn.layers.attention.scores import CosineScore as CosineScore
from tfattn.layers.attention.scores import DotProductScore as DotProductScore
from tfattn.layers.attention.scores import KernelScore as KernelScore
from tfattn.layers.attention.scores import NormalizedDotProductScore as NormalizedDotProductScore
from tfattn.layers.attention.scores import Score as Score
from tfattn.layers.attention.scores import SoftCapScore as SoftCapScore
from tfattn.layers.attention.single_head import AdditiveAttention as AdditiveAttention
from tfattn.layers.attention.single_head import Attention as Attention
from tfattn.layers.attention.single_head import BilinearAttention as BilinearAttention
from tfattn.layers.attention.single_head import DotProductAttention as DotProductAttention
from tfattn.layers.attention.single_head import NadarayaWatson as NadarayaWatson
from tfattn.layers.attention.weights import attention_weights as attention_weights
from tfattn.layers.positions import scalings as scalings
from tfattn.layers.positions.added import LearnedPositionalEncoding as LearnedPositionalEncoding
from tfattn.layers.positions.added import (
    SinusoidalPositionalEncoding as SinusoidalPositionalEncoding,
)
from tfattn.layers.positions.base import AlibiPositions as AlibiPositions
from tfattn.layers.positions.base import HeadPositions as HeadPositions
from tfattn.layers.positions.base import RelativePositionBias as RelativePositionBias
from tfattn.layers.positions.rotary import RotaryPositions as RotaryPositions
from tfattn.layers.recurrent.decoder import RecurrentDecoder as RecurrentDecoder
from tfattn.layers.recurrent.encoder import RecurrentEncoder as RecurrentEncoder
from tfattn.layers.transformer.block import TransformerEncoderBlock as TransformerEncoderBlock
from tfattn.layers.transformer.decoder_block import (
    TransformerDecoderBlock as TransformerDecoderBlock,
)
from tfattn.layers.transformer.feed_forward import GatedFeedForward as GatedFeedForward
from tfattn.layers.transformer.feed_forward import (
    PositionwiseFeedForward as PositionwiseFeedForward,
)
from tfattn.layers.transformer.norm import AddNorm as AddNorm
from tfattn.models.language_model import CausalLM as CausalLM
from tfattn.models.seq2seq import BahdanauSeq2Seq as BahdanauSeq2Seq
from tfattn.models.stacks import TransformerDecoder as TransformerDecoder
from tfattn.models.stacks import TransformerEncoder as TransformerEncoder
from tfattn.models.transformer import Transformer as Transformer
from tfattn.training.losses import MaskedCrossentropy as MaskedCrossentropy
from tfattn.training.metrics import MaskedAccuracy as MaskedAccuracy
from tfattn.training.schedules import InverseSquareRootSchedule as InverseSquareRootSchedule
from tfattn.training.schedules import TransformerSchedule as TransformerSchedule

if _TYPE_CHECKING:
    from tfattn import convert as convert
    from tfattn import data as data
    from tfattn import interpret as interpret
    from tfattn import plot as plot

__version__ = "0.1.0"

# Modules without layers are imported when they are first used, which halves the import time.
_LAZY = {"convert", "data", "interpret", "plot"}
_NOT_PUBLIC = {"core", "decoding", "examples", "layers", "models"}
__all__ = sorted(name for name in {*globals(), *_LAZY} - _NOT_PUBLIC if not name.startswith("_"))


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return _importlib.import_module(f"tfattn.{name}")
    raise AttributeError(f"module 'tfattn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
