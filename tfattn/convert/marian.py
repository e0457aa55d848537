"""Converters for Marian's translation models in `transformers` (`MarianMTModel`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfattn import _checks
from tfattn.convert import blocks, weights
from tfattn.layers.positions.added import LearnedPositionalEncoding
from tfattn.layers.transformer.decoder_block import TransformerDecoderBlock
from tfattn.layers.transformer.feed_forward import PositionwiseFeedForward
from tfattn.models.transformer import Transformer

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu", "tanh": "tanh"}

# The logit of padding. Finite and moderate: the loss with label smoothing sums all logits.
NEVER = -100.0

_SIDES = ("encoder", "decoder")
_OF_SIDE = ("layers", "ffn_dim", "attention_heads")
_SIZES = tuple(f"{side}_{size}" for side in _SIDES for size in _OF_SIDE)

# The matrices with a row for each token.
_MATRICES = (*(f"model.{side}.embed_tokens.weight" for side in _SIDES), "lm_head.weight")
# Names in a block, as in `weights.Part`; an encoder's has no `encoder_attn`.
_ATTENTION: weights.Table = {
    "q_proj.": ["query"],
    "k_proj.": ["key"],
    "v_proj.": ["value"],
    "out_proj.": ["attention_output"],
}
_BLOCK: weights.Table = {
    **weights.below(_ATTENTION, "self_attn.", "self_attention"),
    "self_attn_layer_norm.": ["self_attention_norm/norm"],
    **weights.below(_ATTENTION, "encoder_attn.", "cross_attention"),
    "encoder_attn_layer_norm.": ["cross_attention_norm/norm"],
    "fc1.": ["feed_forward/inner"],
    "fc2.": ["feed_forward/outer"],
    "final_layer_norm.": ["feed_forward_norm/norm"],
}


def from_marian(state: Mapping[str, Any], config: Mapping[str, Any]) -> Transformer:
    """Converts a `MarianMTModel` to an equivalent `Transformer`.

        model = tfattn.convert.from_marian(module.state_dict(), module.config.to_dict())
        state = model.encode(tfattn.convert.ids_from_marian(source, config), max_length=64)
        begin, end = config["decoder_start_token_id"] + 1, config["eos_token_id"] + 1

    Ids are one higher than Marian's (`ids_from_marian`), since 0 is padding in tfattn and a token
    in Marian. The vocabularies have an additional entry for padding, with a vector of zeros and a
    logit that is never the highest. Embeddings and output matrix are separate copies of Marian's
    single matrix. The sinusoids, in Marian's order (first all sines, then all cosines), are a
    constant table of `max_position_embeddings` positions.

    Args:
        state: name to array, such as `module.state_dict()` or the content of a file of weights;
            bfloat16 becomes float32. The tables of positions may be missing.
        config: the model's `config.json`, or `module.config.to_dict()`.
    Returns:
        A built model with the same weights.
    Raises:
        ValueError: the config has an unsupported feature, by name; weights are missing, unknown, or
            of other shapes, all of which are listed.

    Source: Junczys-Dowmunt et al. 2018, arXiv:1804.00344, for Marian.
    """
    who = "from_marian"
    needed = ("d_model", "activation_function", "vocab_size", "pad_token_id")
    _checks.mapping(who, "config", config, (*needed, "max_position_embeddings", *_SIZES))
    state = weights.read(who, state)
    _refuse(who, config)
    width, num_heads = config["d_model"], config["encoder_attention_heads"]
    network = PositionwiseFeedForward(
        config["encoder_ffn_dim"],
        activation=_ACTIVATIONS[config["activation_function"]],
        dropout=config.get("activation_dropout", 0.0),
    )
    source_size = config["vocab_size"]
    model = Transformer(
        source_size + 1,
        (config.get("decoder_vocab_size") or source_size) + 1,
        num_layers=config["encoder_layers"],
        width=width,
        block=TransformerDecoderBlock(
            num_heads,
            dropout=config.get("dropout", 0.0),
            attention_dropout=config.get("attention_dropout", 0.0),
            feed_forward=network,
        ),
        positions=LearnedPositionalEncoding(
            config["max_position_embeddings"],
            input_scale=width**0.5 if config.get("scale_embedding") else 1.0,
            trainable=False,
        ),
    )
    model.build_for_any()
    table = _sinusoids(config["max_position_embeddings"], width)
    shared = config.get("share_encoder_decoder_embeddings", True)
    state = _complete(state, table, shared, config.get("tie_word_embeddings", True))
    expected = _state(model)
    if not shared:
        del expected["model.shared.weight"]
    weights.check(who, expected, state)
    _load(model, state)
    return model


def to_marian(model: Transformer) -> dict[str, np.ndarray]:
    """Converts a `Transformer` to the state dict of an equivalent `MarianMTModel`.

    The inverse of `from_marian`. The configuration of Marian's model must have the sizes and the
    activation of `model`, which are not part of a state.

    Args:
        model: a built `Transformer` of plain post-norm blocks, with a table of positions. If its
            two embeddings and its output matrix differ, Marian's configuration must neither share
            (`share_encoder_decoder_embeddings`) nor tie them.
    Returns:
        Name to array, with `model.shared.weight` if source and target have equal matrices.
    Raises:
        ValueError: another class; a model that is not built; a feature that Marian does not have,
            by name: another attention, network, norm or position, a logit of padding.
    """
    who = "to_marian"
    weights.check_built(who, "model", model, (Transformer,))
    for block in (*model.encoder.blocks, *model.decoder.blocks):
        blocks.check_block(who, block)
        only = "Marian has only layer normalization after each sublayer, with an epsilon of 1e-5"
        other_epsilon = block.self_attention_norm.norm.epsilon != 1e-5
        weights.refuse(who, "norm_first", block.norm_first, only)
        weights.refuse(who, "epsilon of the norm", other_epsilon, only)
    positions = (model.encoder.positions, model.decoder.positions)
    other = {type(layer) for layer in positions} != {LearnedPositionalEncoding}
    weights.refuse(who, "positions", other, "Marian has a table of positions")
    weights.refuse(
        who, "share_embeddings", model.share_embeddings, "Marian's output has a bias of its own"
    )
    likely = model.output_dense.bias.numpy()[0] > NEVER / 2  # training moves it a little
    weights.refuse(who, "logit of padding", likely, "Marian never predicts padding")
    state = _state(model)
    source, target = (state[f"model.{side}.embed_tokens.weight"] for side in _SIDES)
    if not np.array_equal(source, target):
        del state["model.shared.weight"]
    return state


def ids_from_marian(ids: Any, config: Mapping[str, Any]) -> np.ndarray:
    """Converts Marian's ids for a model of `from_marian`: 0 for padding, all others one higher.

    Decoding begins with `config["decoder_start_token_id"] + 1`, which is Marian's padding used as a
    token, and ends with `config["eos_token_id"] + 1`.

    Args:
        ids: integers of any shape, from Marian's tokenizer.
        config: config of Marian's model, with its `pad_token_id`.
    Returns:
        int32 of the same shape.
    Example:
        >>> print(tfattn.convert.ids_from_marian([[7, 0, 12, 12]], {"pad_token_id": 12}))
        [[8 1 0 0]]
    """
    ids = _ids("ids_from_marian", ids)
    return np.where(ids == config["pad_token_id"], 0, ids + 1).astype("int32")


def ids_to_marian(ids: Any, config: Mapping[str, Any]) -> np.ndarray:
    """Converts ids of a model of `from_marian` to Marian's, for its tokenizer.

    Args:
        ids: integers of any shape.
        config: config of Marian's model, with its `pad_token_id`.
    Returns:
        int32 of the same shape.
    Example:
        >>> print(tfattn.convert.ids_to_marian([[8, 1, 0, 0]], {"pad_token_id": 12}))
        [[ 7  0 12 12]]
    """
    ids = _ids("ids_to_marian", ids)
    return np.where(ids == 0, config["pad_token_id"], ids - 1).astype("int32")


def _ids(who: str, ids: Any) -> np.ndarray:
    ids = np.asarray(ids)
    _checks.integer_dtype(who, "ids", str(ids.dtype))
    return ids


def _refuse(who: str, config: Mapping[str, Any]) -> None:
    """Raises for features that `Transformer` does not have."""
    for size in _OF_SIDE:
        of_encoder, of_decoder = (config[f"{side}_{size}"] for side in _SIDES)
        different = of_encoder != of_decoder
        reason = f"encoder and decoder must be equal, not {of_encoder} and {of_decoder}"
        weights.refuse(who, f"decoder_{size}", different, reason)
    # Settings of related models with the same names of weights.
    for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        reason = "only norms after each sublayer are supported"
        weights.refuse(who, name, bool(config.get(name)), reason)
    activation = config["activation_function"]
    if activation not in _ACTIVATIONS:
        _checks.fail(who, "activation_function", f"be one of {sorted(_ACTIVATIONS)}", activation)


def _sinusoids(length: int, width: int) -> np.ndarray:
    """Marian's positions `(length, width)`: the sines of all frequencies, then their cosines."""
    pairs = 2 * (np.arange(width) // 2)
    angles = np.arange(length)[:, None] / 10_000.0 ** (pairs / width)
    halves = [np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])]
    return np.concatenate(halves, axis=1).astype("float32")


def _complete(
    state: dict[str, np.ndarray], table: np.ndarray, shared: bool, tied: bool
) -> dict[str, np.ndarray]:
    """Adds weights that files leave out: positions, and shared matrices."""
    state = dict(state)
    for side in _SIDES:
        state.setdefault(f"model.{side}.embed_positions.weight", table)
        if shared and "model.shared.weight" in state:
            state.setdefault(f"model.{side}.embed_tokens.weight", state["model.shared.weight"])
    embedding = state.get("model.decoder.embed_tokens.weight")
    if tied and embedding is not None:
        state.setdefault("lm_head.weight", embedding)
    if embedding is not None:
        state.setdefault("final_logits_bias", np.zeros((1, len(embedding)), "float32"))
    return state


def _parts(model: Transformer) -> list[weights.Part]:
    names: dict[str, Sequence[str]] = {"lm_head.": ["output"]}
    for side in _SIDES:
        positions = getattr(model, side).positions.name
        names[f"model.{side}.embed_tokens."] = [f"{side}/embedding"]
        names[f"model.{side}.embed_positions."] = [f"{side}/{positions}"]
        for i in range(model.num_layers):
            names |= weights.below(_BLOCK, f"model.{side}.layers.{i}.", f"{side}/block_{i}")
    return [("", model, names)]


def _state(model: Transformer) -> dict[str, np.ndarray]:
    """All weights of the model under Marian's names, without the entry of padding."""
    state = weights.to_state(_parts(model))
    for name in (*_MATRICES, "lm_head.bias"):
        state[name] = state[name][1:]
    state["final_logits_bias"] = state.pop("lm_head.bias")[None]
    return {"model.shared.weight": state[_MATRICES[0]], **state}


def _load(model: Transformer, state: dict[str, np.ndarray]) -> None:
    """Loads a complete state, with an entry of padding before all others."""
    with_padding = {name: np.pad(state[name], ((1, 0), (0, 0))) for name in _MATRICES}
    bias = np.concatenate([[NEVER], state["final_logits_bias"][0]]).astype("float32")
    weights.load_state(_parts(model), {**state, **with_padding, "lm_head.bias": bias})
