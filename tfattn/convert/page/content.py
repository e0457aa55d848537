"""What a page holds of a translator: settings, weights as bytes, and vocabularies."""

import contextlib
from typing import Any

import keras
import numpy as np

from tfattn import data
from tfattn.convert import blocks, weights
from tfattn.data.subwords import keeps_text
from tfattn.layers.attention.scores import AdditiveScore
from tfattn.layers.positions.added import LearnedPositionalEncoding, SinusoidalPositionalEncoding
from tfattn.models.seq2seq import BahdanauSeq2Seq
from tfattn.models.transformer import Transformer

QUANTIZATIONS = ("int8", "float16")
_ACTIVATIONS = ("relu", "gelu", "silu", "tanh")


def of_transformer(who: str, model: Transformer) -> dict[str, Any]:
    """The settings for `model.js`; raises for features that the page does not have."""
    for block in (*model.encoder.blocks, *model.decoder.blocks):
        blocks.check_block(who, block, allowed=("key_dim",))
    activation = block.feed_forward.activation
    names = {getattr(keras.activations, name): name for name in _ACTIVATIONS}
    reason = f"the page has {', '.join(_ACTIVATIONS)}"
    weights.refuse(who, "activation", activation not in names, reason)
    positions = {"encoder": model.encoder.positions, "decoder": model.decoder.positions}
    return {
        "kind": "transformer",
        "numLayers": model.num_layers,
        "numHeads": block.self_attention.num_heads,
        "width": model.width,
        "normFirst": block.norm_first,
        "epsilon": block.self_attention_norm.norm.epsilon,
        "activation": names[activation],
        "positions": {side: _positions(who, layer) for side, layer in positions.items()},
        "maxLength": {"encoder": model.max_source_length, "decoder": model.max_target_length},
    }


def of_recurrent(who: str, model: BahdanauSeq2Seq) -> dict[str, Any]:
    """The settings for `recurrent.js`; raises for features that the page does not have."""
    other_cell = model.cell is not keras.layers.GRUCell
    weights.refuse(who, "cell", other_cell, "the page has only GRU cells")
    other_score = type(model.score) is not AdditiveScore
    weights.refuse(who, "score", other_score, "the page has only the additive score here")
    return {
        "kind": "recurrent",
        "numLayers": model.num_layers,
        "width": model.width,
        "units": model.units,
        "bidirectional": model.bidirectional,
        "maxLength": {"encoder": None, "decoder": None},
    }


def _positions(who: str, layer: keras.layers.Layer) -> dict[str, Any]:
    kinds = (SinusoidalPositionalEncoding, LearnedPositionalEncoding, keras.layers.Identity)
    weights.check_type(who, "positions", layer, kinds)
    return {
        "name": layer.name,  # of a learned table
        "scale": getattr(layer, "input_scale", 1.0),
        "wavelength": getattr(layer, "max_wavelength", None),  # of sinusoids
    }


def to_bytes(found: dict[str, np.ndarray], quantization: str) -> tuple[list[dict[str, Any]], bytes]:
    """The tensors' names, sizes and types, and their content, each at a multiple of 4 bytes."""
    tensors, content = [], bytearray()
    for name, array in found.items():
        array = array.astype("float32")
        rows, columns = array.shape if array.ndim == 2 else (1, len(array))
        kind = quantization if array.ndim == 2 else "float32"  # of vectors
        tensors.append({"name": name, "rows": rows, "columns": columns, "type": kind})
        for part in _int8(array) if kind == "int8" else [array.astype(kind)]:
            little = part.astype(part.dtype.newbyteorder("<")).tobytes()
            content += little + bytes(-len(little) % 4)
    return tensors, bytes(content)


def _int8(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales `(rows,)` and whole numbers from -127 to 127, whose product is nearly the matrix."""
    scales = np.abs(matrix).max(axis=1) / np.float32(127)
    scales[scales == 0] = 1.0
    return scales, np.rint(matrix / scales[:, None]).astype("int8")


def of_vocabulary(who: str, name: str, vocabulary: Any) -> dict[str, Any]:
    """A vocabulary for `vocabulary.js`; raises for a segmentation that it does not have."""
    weights.check_type(who, name, vocabulary, (data.Vocabulary, data.SubwordVocabulary))
    if isinstance(vocabulary, data.SubwordVocabulary):
        reason = "the page splits sentences as the vocabularies of `from_sentences` do"
        weights.refuse(who, name, not _splits_as_the_page(vocabulary), reason)
        reason = "the page keeps no symbols whole"
        weights.refuse(who, f"symbols of {name}", bool(vocabulary.symbols), reason)
        kind = "subwords"
    else:
        tokenizer = vocabulary.tokenizer
        kind = "characters" if isinstance(tokenizer, data.Characters) else "words"
        other = kind == "words" and tokenizer not in (None, str.split)
        reason = "the page has white space and Characters() as tokenizers"
        weights.refuse(who, f"tokenizer of {name}", other, reason)
    return {
        "kind": kind,
        "words": vocabulary.words,
        "skipsSpace": getattr(vocabulary, "tokenizer", None) is not None,
    }


def _splits_as_the_page(vocabulary: data.SubwordVocabulary) -> bool:
    with contextlib.suppress(ValueError):
        data.SubwordDropout(vocabulary)  # refuses other algorithms and other white space
        return keeps_text(vocabulary)
    return False
