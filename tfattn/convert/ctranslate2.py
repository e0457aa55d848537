"""Export of a `Transformer` to CTranslate2, which translates without TensorFlow."""

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfattn import _checks, _optional
from tfattn.convert import blocks, folders, weights
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.positions.added import (
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
)
from tfattn.layers.positions.rotary import RotaryPositions
from tfattn.layers.transformer.block import TransformerBlock
from tfattn.layers.transformer.feed_forward import GatedFeedForward, PositionwiseFeedForward
from tfattn.layers.transformer.norm import LayerNormalization
from tfattn.models.transformer import Transformer

_ACTIVATIONS = {
    keras.activations.relu: "RELU",
    keras.activations.gelu: "GELU",
    keras.activations.silu: "SWISH",
    keras.activations.tanh: "Tanh",
}
# Names in CTranslate2's specification of a layer, as in `weights.Part`; an encoder's has no
# `attention`.
_BLOCK: weights.Table = {
    "self_attention/linear_0/": [f"self_attention/{x}" for x in ("query", "key", "value")],
    "self_attention/linear_1/": ["self_attention/attention_output"],
    "self_attention/layer_norm/": ["self_attention_norm/norm"],
    "attention/linear_0/": ["cross_attention/query"],
    "attention/linear_1/": ["cross_attention/key", "cross_attention/value"],
    "attention/linear_2/": ["cross_attention/attention_output"],
    "attention/layer_norm/": ["cross_attention_norm/norm"],
    "ffn/linear_0/": ["feed_forward/inner"],
    "ffn/linear_1/": ["feed_forward/outer"],
    "ffn/layer_norm/": ["feed_forward_norm/norm"],
}
_GATED: weights.Table = {
    **_BLOCK,
    "ffn/linear_0/": ["feed_forward/gate"],
    "ffn/linear_0_noact/": ["feed_forward/inner"],
}
_OF_NORMS = {"weight": "gamma", "bias": "beta"}


def to_ctranslate2(
    model: Transformer,
    vocabularies: Sequence[Any],
    folder: str | os.PathLike[str],
    quantization: str | None = None,
    max_length: int = 1024,
) -> None:
    """Writes a folder for `ctranslate2.Translator` and `tfattn.convert.CTranslate2`.

        tfattn.convert.to_ctranslate2(model, [source_words, target_words], "served", "int8")
        tfattn.convert.CTranslate2("served").translate(["a cat sees a bird"])

    CTranslate2 is an engine in C++ for CPUs and NVIDIA's GPUs. In float32, greedy search gives the
    same tokens as the model. Dropout is left out. LoRA is merged into the matrices.

    Supported: post-norm and pre-norm blocks; layer normalization or RMS norms; feed-forward layers
    with ReLU, GELU, SiLU or tanh, gated or not; one embedding or several; sinusoids, learned or
    rotary positions; a scale of the scores; linear maps of heads without biases; one key head for
    all query heads.

    Args:
        model: a built `Transformer`.
        vocabularies: source and target, such as two of `tfattn.data.Vocabulary` or the same
            `SubwordVocabulary` twice, saved as `source.vocabulary` and `target.vocabulary` for
            `tfattn.data.load_vocabulary`, and in CTranslate2's own format.
        folder: path of a new or empty folder.
        quantization: "int8", "int16" or "float16" for matrices that need less memory and time;
            "int8_float32" or "int8_float16" also name the type of the other weights. Defaults to
            float32.
        max_length: positive int, the maximum number of tokens of a sentence for sinusoids, which
            are exported as a table.
    Raises:
        ValueError: another class; a model that is not built; a feature that CTranslate2 does not
            have, by name; vocabularies of other sizes, or with other special words than each other;
            a folder that is not empty; another `quantization`.
        ImportError: ctranslate2 is not installed.
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> model = Transformer(len(words), num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> model.build_for_any()
        >>> tfattn.convert.to_ctranslate2(model, [words, words], "served")  # doctest: +SKIP
    """
    who = "to_ctranslate2"
    weights.check_built(who, "model", model, (Transformer,))
    folder = folders.checked(who, folder, model, vocabularies)
    specs = _optional.find("ctranslate2.specs", "serve", who)
    special = [_special_words(vocabulary) for vocabulary in vocabularies]
    if special[0] != special[1]:
        _checks.fail(who, "vocabularies", "have equal words for unknown, begin and end", special)
    for stack in (model.encoder, model.decoder):
        for block in stack.blocks:
            _check_block(who, block, stack.positions)
    longest = None
    if model.encoder.blocks[0].self_attention.positions is None:
        longest = getattr(model.encoder.positions, "max_length", None) or max_length
    spec = _spec(specs, model, longest)
    spec.register_source_vocabulary(list(vocabularies[0].words))
    spec.register_target_vocabulary(list(vocabularies[1].words))
    entries = {"add_source_bos": False, "add_source_eos": True, "tfattn_max_length": longest}
    for name, value in {**special[1], **entries}.items():
        spec.config.add_attribute(name, value)
    spec.validate()
    spec.optimize(quantization)
    with folders.atomic_folder(folder) as unfinished:
        folders.save_vocabularies(vocabularies, unfinished)
        spec.save(unfinished)


def _special_words(vocabulary: Any) -> dict[str, str]:
    """The special words of a vocabulary, by their names in CTranslate2's `config.json`."""
    begin = vocabulary.words[vocabulary.begin_id]
    return {
        "unk_token": vocabulary.words[vocabulary.unknown_id],
        "bos_token": begin,
        "eos_token": vocabulary.words[vocabulary.end_id],
        "decoder_start_token": begin,
    }


def _check_block(who: str, block: TransformerBlock, added: keras.layers.Layer) -> None:
    """Raises for what CTranslate2 does not have, also of positions `added` to the embeddings."""
    weights.check_type(who, "block", block, blocks.BLOCKS)
    attention, network = block.self_attention, block.feed_forward
    norm = block.self_attention_norm.norm
    weights.check_type(who, "attention", attention, (MultiHeadAttention,))
    blocks.check_attention(
        who, attention, allowed=("scale", "positions", "num_key_value_heads", "use_bias")
    )
    some = attention.num_key_value_heads not in (1, attention.num_heads)
    reason = "CTranslate2 has a key head for each query head, or one for all"
    weights.refuse(who, "num_key_value_heads", some, reason)
    tables = (LearnedPositionalEncoding, SinusoidalPositionalEncoding)
    weights.check_type(who, "positions", added, (*tables, keras.layers.Identity))
    rotary = attention.positions
    if rotary is not None:
        other = type(rotary) is not RotaryPositions or isinstance(added, tables)
        only = "CTranslate2 has added or rotary positions, not both, and no others within attention"
        weights.refuse(who, "positions", other, only)
        scaled = rotary.scaling is not None
        weights.refuse(who, "scaling", scaled, "CTranslate2's rotary positions have no scaling")
    networks = (PositionwiseFeedForward, GatedFeedForward)
    weights.check_type(who, "feed_forward", network, networks)
    known = ", ".join(function.__name__ for function in _ACTIVATIONS)
    other = network.activation not in _ACTIVATIONS
    weights.refuse(who, "activation", other, f"CTranslate2 has {known}")
    layer_norms = (LayerNormalization, keras.layers.LayerNormalization)
    weights.check_type(who, "norm", norm, (*layer_norms, keras.layers.RMSNormalization))
    if isinstance(norm, layer_norms):
        blocks.check_norm(who, norm)


def _spec(specs: Any, model: Transformer, longest: int | None) -> Any:
    """CTranslate2's specification of the model with its weights."""
    block = model.encoder.blocks[0]
    attention, network = block.self_attention, block.feed_forward
    scale, norm = attention.score.scale, block.self_attention_norm.norm
    options: dict[str, Any] = {
        "pre_norm": block.norm_first,
        "activation": specs.Activation[_ACTIVATIONS[network.activation]],
        "ffn_glu": isinstance(network, GatedFeedForward),
        "rms_norm": isinstance(norm, keras.layers.RMSNormalization),
        "multi_query_attention": attention.num_key_value_heads != attention.num_heads,
    }
    if attention.positions is not None:
        options |= {
            "rotary_dim": attention.positions.rotary_dim or 0,  # 0 for all features
            "rotary_interleave": attention.positions.interleaved,
            "rotary_base": attention.positions.base,
        }
    sizes = (model.num_layers, attention.num_heads)
    encoder = specs.TransformerEncoderSpec(*sizes, **options)
    decoder = specs.TransformerDecoderSpec(*sizes, **options)
    spec = specs.TransformerSpec(encoder, decoder)
    for name, array in weights.to_state([("", model, _names(model))]).items():
        module, _, leaf = name.rpartition("/")
        part = specs.model_spec.index_spec(spec, module)
        leaf = leaf if hasattr(part, leaf) else _OF_NORMS[leaf]
        setattr(part, leaf, array.astype("float32"))  # quantization would keep float16
    for each, stack in ((encoder, model.encoder), (decoder, model.decoder)):
        each.scale_embeddings = np.float32(getattr(stack.positions, "input_scale", 1.0))
        if longest is not None:
            # CTranslate2's sinusoids have other frequencies, in another order, starting at 1.
            each.position_encodings.encodings = _table(stack.positions, longest, stack.width)
        for layer in each.layer:
            for name in ("self_attention", "attention"):
                if scale is not None and hasattr(layer, name):
                    getattr(layer, name).queries_scale = np.float32(scale)
    spec.config.layer_norm_epsilon = norm.epsilon
    return spec


def _names(model: Transformer) -> weights.Table:
    """The names of all weights in the specification."""
    shared = "encoder/embedding" if model.share_embeddings else None
    names: dict[str, Sequence[str]] = {
        "encoder/embeddings_0/": ["encoder/embedding"],
        "decoder/embeddings/": [shared or "decoder/embedding"],
        "decoder/projection/": [shared or "output"],
    }
    gated = isinstance(model.encoder.blocks[0].feed_forward, GatedFeedForward)
    for side in ("encoder", "decoder"):
        names[f"{side}/layer_norm/"] = [f"{side}/final_norm"]  # of pre-norm blocks
        for i in range(model.num_layers):
            block = _GATED if gated else _BLOCK
            names |= weights.below(block, f"{side}/layer_{i}/", f"{side}/block_{i}")
    return names


def _table(positions: keras.layers.Layer, length: int, width: int) -> np.ndarray:
    """The vectors of the first positions, `(length, width)`."""
    if isinstance(positions, keras.layers.Identity):
        return np.zeros((length, width), "float32")
    places = keras.ops.arange(length, dtype="int32")
    return keras.ops.convert_to_numpy(positions.encode(places, width)).astype("float32")
