"""Export of a `Transformer` to CTranslate2, which translates without TensorFlow."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from tfattn import _checks, _optional
from tfattn.convert import blocks, folders, weights
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.attention.scores import DotProductScore
from tfattn.layers.positions.added import (
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
)
from tfattn.layers.positions.rotary import RotaryPositions
from tfattn.layers.transformer.block import TransformerBlock
from tfattn.layers.transformer.feed_forward import PositionwiseFeedForward
from tfattn.layers.transformer.gated_feed_forward import GatedFeedForward
from tfattn.layers.transformer.norm import LayerNormalization
from tfattn.models.transformer import Transformer

_QUANTIZATIONS = ("float32", "float16", "int16", "int8", "int8_float32", "int8_float16")
_ACTIVATIONS = {
    keras.activations.relu: "RELU",
    keras.activations.gelu: "GELU",
    keras.activations.silu: "SWISH",
    keras.activations.tanh: "Tanh",
}


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
            have, by name; vocabularies of other sizes, without `words`, or with repeated words; a
            folder that is not empty.
        ImportError: ctranslate2 is not installed.
    Example:
        >>> import tempfile
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> model = Transformer(len(words), num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> model.build_for_any()
        >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
        ...     tfattn.convert.to_ctranslate2(model, [words, words], folder)
        ...     served = tfattn.convert.CTranslate2(folder)
        ...     translations = served.translate(["a bird sings"])
    """
    who = "to_ctranslate2"
    weights.check_type(who, "model", model, (Transformer,))
    weights.check_built(who, model, "model")
    folders.check_vocabularies(who, model, vocabularies)
    _check_words(who, vocabularies)
    if quantization is not None and quantization not in _QUANTIZATIONS:
        _checks.fail(who, "quantization", f"be one of {_QUANTIZATIONS}", quantization)
    _checks.positive_int(who, "max_length", max_length)
    folder = folders.check_empty(who, folder)
    settings = _settings(who, model)
    specs = _optional.find("ctranslate2.specs", "serve", who)
    longest = settings.max_length(max_length)
    spec = _spec(specs, model, settings, longest)
    for side, vocabulary in zip(("source", "target"), vocabularies, strict=True):
        getattr(spec, f"register_{side}_vocabulary")(list(vocabulary.words))
    for name, value in _configuration(vocabularies, settings, longest).items():
        spec.config.add_attribute(name, value)
    spec.validate()
    spec.optimize(quantization)
    with folders.atomic_folder(folder) as unfinished:
        folders.save_vocabularies(vocabularies, unfinished)
        spec.save(unfinished)
        path = Path(unfinished, "config.json")
        written = {"tfattn_files": folders.fingerprints(unfinished, folders.ENGINE_FILES)}
        record = {**json.loads(path.read_text("utf-8")), **written}
        path.write_text(json.dumps(record, indent=2), "utf-8")


def _check_words(who: str, vocabularies: Sequence[Any]) -> None:
    """Raises unless words are distinct, and both vocabularies have the same special words."""
    for i, vocabulary in enumerate(vocabularies):
        words = getattr(vocabulary, "words", None)
        if words is None or len(set(words)) != len(vocabulary):
            _checks.fail(who, f"vocabularies[{i}]", "have distinct `words`", vocabulary)
    special = [
        [each.words[i] for i in (each.unknown_id, each.begin_id, each.end_id)]
        for each in vocabularies
    ]
    if special[0] != special[1]:
        _checks.fail(who, "vocabularies", "have equal words for unknown, begin and end", special)


class _Settings(NamedTuple):
    """Settings that all layers of a model share."""

    num_layers: int
    num_heads: int
    norm_first: bool
    rms_norm: bool
    epsilon: float
    activation: str
    gated: bool
    one_key_head: bool
    scale: float | None  # of the scores
    positions: keras.layers.Layer  # added to the embeddings
    rotary: RotaryPositions | None

    def max_length(self, of_sinusoids: int) -> int | None:
        """The maximum number of tokens of a sentence; None for no limit."""
        if self.rotary is not None:
            return None
        return getattr(self.positions, "max_length", None) or of_sinusoids


def _settings(who: str, model: Transformer) -> _Settings:
    """The model's settings; raises for features that CTranslate2 does not have."""
    stacks = (model.encoder, model.decoder)
    for block in (*model.encoder.blocks, *model.decoder.blocks):
        _check_block(who, block, model.width)
    block = model.encoder.blocks[0]
    attention, network, norm = block.self_attention, block.feed_forward, _norms(block)[0]
    for stack in stacks:
        _check_positions(who, stack.positions, attention.positions)
    return _Settings(
        num_layers=model.num_layers,
        num_heads=attention.num_heads,
        norm_first=block.norm_first,
        rms_norm=isinstance(norm, keras.layers.RMSNormalization),
        epsilon=norm.epsilon,
        activation=_ACTIVATIONS[network.activation],
        gated=isinstance(network, GatedFeedForward),
        one_key_head=attention.num_key_value_heads != attention.num_heads,
        scale=attention.score.scale,
        positions=model.encoder.positions,
        rotary=attention.positions,
    )


def _check_block(who: str, block: TransformerBlock, width: int) -> None:
    weights.check_type(who, "block", block, blocks.BLOCKS)
    for attention in _attentions(block):
        _check_attention(who, attention, width)
    network = block.feed_forward
    networks = (PositionwiseFeedForward, GatedFeedForward)
    weights.check_type(who, "feed_forward", network, networks)
    known = ", ".join(function.__name__ for function in _ACTIVATIONS)
    weights.refuse(
        who, "activation", network.activation not in _ACTIVATIONS, f"CTranslate2 has {known}"
    )
    for norm in _norms(block):
        norms = (
            LayerNormalization,
            keras.layers.LayerNormalization,
            keras.layers.RMSNormalization,
        )
        weights.check_type(who, "norm", norm, norms)
        rms = isinstance(norm, keras.layers.RMSNormalization)
        partial = not rms and (norm.gamma is None or norm.beta is None)
        weights.refuse(who, "norm", partial, "layer normalization must have both weights")


def _check_attention(who: str, attention: MultiHeadAttention, width: int) -> None:
    weights.check_type(who, "attention", attention, (MultiHeadAttention,))
    heads, groups = attention.num_heads, attention.num_key_value_heads
    narrow = attention.key_dim * heads != width
    other_axes = attention.attention_axes not in (None, (1,))
    other_values = attention.value_dim != attention.key_dim
    other_score = type(attention.score) is not DotProductScore
    weights.refuse(who, "score", other_score, "CTranslate2 has only the dot product")
    weights.refuse(
        who, "normalizer", attention.normalizer is not None, "CTranslate2 has only the softmax"
    )
    weights.refuse(
        who,
        "num_key_value_heads",
        groups not in (1, heads),
        "CTranslate2 has a key head for each query head, or one for all",
    )
    weights.refuse(who, "key_dim", narrow, "the width of a head must be width / num_heads")
    weights.refuse(who, "value_dim", other_values, "keys and values must have one size")
    weights.refuse(who, "use_gate", attention.use_gate, "CTranslate2 has no gates of heads")
    weights.refuse(
        who, "sliding_window", attention.sliding_window is not None, "CTranslate2 has no windows"
    )
    weights.refuse(who, "attention_axes", other_axes, "sequences must have one axis")
    rotary = attention.positions
    if rotary is not None:
        other = type(rotary) is not RotaryPositions
        weights.refuse(who, "positions", other, "CTranslate2 has only rotary positions")
        scaled = rotary.scaling is not None
        weights.refuse(who, "scaling", scaled, "CTranslate2's rotary positions have no scaling")


def _check_positions(who: str, added: Any, rotary: RotaryPositions | None) -> None:
    tables = (LearnedPositionalEncoding, SinusoidalPositionalEncoding)
    weights.check_type(who, "positions", added, (*tables, keras.layers.Identity))
    both = rotary is not None and isinstance(added, tables)
    weights.refuse(who, "positions", both, "CTranslate2 has added or rotary positions, not both")


def _attentions(block: TransformerBlock) -> list[MultiHeadAttention]:
    cross = getattr(block, "cross_attention", None)
    return [block.self_attention, *([] if cross is None else [cross])]


def _norms(block: TransformerBlock) -> list[keras.layers.Layer]:
    names = ("self_attention_norm", "cross_attention_norm", "feed_forward_norm")
    return [getattr(block, name).norm for name in names if hasattr(block, name)]


def _configuration(
    vocabularies: Sequence[Any], settings: _Settings, longest: int | None
) -> dict[str, Any]:
    """The entries of `config.json` except fingerprints of files; the last entry is tfattn's."""
    return {
        **folders.special_tokens(vocabularies[1]),
        "add_source_bos": False,
        "add_source_eos": True,
        "layer_norm_epsilon": settings.epsilon,
        "multi_query_attention": settings.one_key_head,
        "tfattn_max_length": longest,
    }


def _spec(specs: Any, model: Transformer, settings: _Settings, longest: int | None) -> Any:
    options: dict[str, Any] = {
        "pre_norm": settings.norm_first,
        "activation": getattr(specs.Activation, settings.activation),
        "ffn_glu": settings.gated,
        "rms_norm": settings.rms_norm,
        "multi_query_attention": settings.one_key_head,
    }
    if settings.rotary is not None:
        options |= {
            "rotary_dim": settings.rotary.rotary_dim or 0,  # 0 for all features
            "rotary_interleave": settings.rotary.interleaved,
            "rotary_base": settings.rotary.base,
        }
    sizes = (settings.num_layers, settings.num_heads)
    encoder = specs.TransformerEncoderSpec(*sizes, **options)
    decoder = specs.TransformerDecoderSpec(*sizes, **options)
    for spec, stack in ((encoder, model.encoder), (decoder, model.decoder)):
        _fill_stack(spec, stack, longest)
    encoder.embeddings[0].weight = _arrays(model.encoder.embedding)["embeddings"]
    decoder.embeddings.weight = _arrays(model.decoder.embedding)["embeddings"]
    if model.output_dense is None:
        decoder.projection.weight = decoder.embeddings.weight
    else:
        _fill_linear(decoder.projection, _rows(model.output_dense), "")
    return specs.TransformerSpec(encoder, decoder)


def _fill_stack(spec: Any, stack: Any, longest: int | None) -> None:
    """Fills an encoder or a decoder except its embedding."""
    spec.scale_embeddings = np.float32(getattr(stack.positions, "input_scale", 1.0))
    if longest is not None:
        # CTranslate2's sinusoids have other frequencies, in another order, starting at 1.
        spec.position_encodings.encodings = _table(stack.positions, longest, stack.width)
    if stack.final_norm is not None:
        _fill_norm(spec.layer_norm, stack.final_norm)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        itself = (("query", "key", "value"), ("attention_output",))
        _fill_attention(layer.self_attention, block.self_attention, itself)
        _fill_norm(layer.self_attention.layer_norm, block.self_attention_norm.norm)
        if getattr(block, "cross_attention", None) is not None:
            memory = (("query",), ("key", "value"), ("attention_output",))
            _fill_attention(layer.attention, block.cross_attention, memory)
            _fill_norm(layer.attention.layer_norm, block.cross_attention_norm.norm)
        _fill_network(layer.ffn, block.feed_forward)
        _fill_norm(layer.ffn.layer_norm, block.feed_forward_norm.norm)


def _table(positions: keras.layers.Layer, length: int, width: int) -> np.ndarray:
    """The vectors of the first positions, `(length, width)`."""
    if isinstance(positions, keras.layers.Identity):
        return np.zeros((length, width), "float32")
    places = keras.ops.arange(length, dtype="int32")
    return keras.ops.convert_to_numpy(positions.encode(places, width)).astype("float32")


def _fill_attention(
    spec: Any, attention: MultiHeadAttention, parts: Sequence[tuple[str, ...]]
) -> None:
    """Fills the linear maps of an attention; CTranslate2 joins maps with the same input."""
    rows = _rows(attention)
    for linear, names in zip(spec.linear, parts, strict=True):
        _fill_linear(linear, rows, *names)
    if attention.score.scale is not None:
        spec.queries_scale = np.float32(attention.score.scale)


def _fill_network(spec: Any, network: PositionwiseFeedForward) -> None:
    rows, gated = _rows(network), isinstance(network, GatedFeedForward)
    _fill_linear(spec.linear_0, rows, "gate" if gated else "inner")
    if gated:
        _fill_linear(spec.linear_0_noact, rows, "inner")
    _fill_linear(spec.linear_1, rows, "outer")


def _fill_linear(spec: Any, rows: dict[str, np.ndarray], *names: str) -> None:
    """Fills a linear map with the concatenation of maps of `_rows`."""
    spec.weight = np.concatenate([rows[f"{name}.weight"] for name in names])
    if f"{names[0]}.bias" in rows:
        spec.bias = np.concatenate([rows[f"{name}.bias"] for name in names])


def _fill_norm(spec: Any, norm: keras.layers.Layer) -> None:
    found = _arrays(norm)
    spec.gamma = found["scale" if isinstance(norm, keras.layers.RMSNormalization) else "gamma"]
    if "beta" in found:
        spec.beta = found["beta"]


def _rows(layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    """Weights of linear maps, with a row for each output, by the names of the maps."""
    maps = {name.rpartition("/")[0] for name in weights.arrays(layer)}
    return _in_float32(weights.to_rows(layer, {name: name for name in maps}))


def _arrays(layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    return _in_float32(weights.arrays(layer))


def _in_float32(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights for quantization, which would keep float16, and does not support bfloat16."""
    return {name: array.astype("float32") for name, array in found.items()}
