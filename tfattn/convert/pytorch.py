"""PyTorch's attention and Transformer modules, as state dicts."""

import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn.convert import blocks, weights
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.transformer.block import TransformerBlock, TransformerEncoderBlock
from tfattn.layers.transformer.decoder_block import TransformerDecoderBlock
from tfattn.layers.transformer.feed_forward import PositionwiseFeedForward

# Names in the modules, as in `weights.Part`.
_ATTENTION: weights.Table = {
    "in_proj_": ["query", "key", "value"],
    "out_proj.": ["attention_output"],
}
_OTHER_WIDTHS: weights.Table = {  # of query, key and value
    "q_proj_weight": ["query/kernel"],
    "k_proj_weight": ["key/kernel"],
    "v_proj_weight": ["value/kernel"],
    "in_proj_bias": ["query/bias", "key/bias", "value/bias"],
    "out_proj.": ["attention_output"],
}
_ENCODER: weights.Table = {
    **weights.below(_ATTENTION, "self_attn.", "self_attention"),
    "norm1.": ["self_attention_norm/norm"],
    "linear1.": ["feed_forward/inner"],
    "linear2.": ["feed_forward/outer"],
    "norm2.": ["feed_forward_norm/norm"],
}
_DECODER: weights.Table = {
    **_ENCODER,
    **weights.below(_ATTENTION, "multihead_attn.", "cross_attention"),
    "norm2.": ["cross_attention_norm/norm"],
    "norm3.": ["feed_forward_norm/norm"],
}
# The first of these names in a state determines the module.
_KINDS = {
    "decoder.layers.0.norm1.weight": "transformer",
    "layers.0.norm3.weight": "decoder stack",
    "layers.0.norm1.weight": "encoder stack",
    "norm3.weight": "decoder",
    "norm1.weight": "encoder",
    "out_proj.weight": "attention",
}


def from_torch(
    state: Mapping[str, Any],
    num_heads: int,
    norm_first: bool = False,
    activation: Any = "relu",
    epsilon: float = 1e-5,
    dropout: float = 0.0,
) -> keras.layers.Layer:
    """Converts a module of PyTorch to an equivalent layer or model of tfattn.

        nn.MultiheadAttention       →  MultiHeadAttention
        nn.TransformerEncoderLayer  →  TransformerEncoderBlock
        nn.TransformerDecoderLayer  →  TransformerDecoderBlock
        nn.TransformerEncoder       →  keras.Sequential of blocks
        nn.TransformerDecoder       →  keras.Model of [target, memory]
        nn.Transformer              →  keras.Model of [source, target]

    The names in the state determine the module. Sizes come from the state, other settings of the
    module from the arguments; `add_zero_attn=True`, which tfattn does not support, leaves no trace
    in a state. All inputs are batch first. Masks have the opposite meaning: True allows attention.
    Decoders are causal by default. Models take padding masks as `model(inputs, mask=...)`, in the
    order of their inputs, or as implicit masks of tensors.

    Args:
        state: name to array, such as `module.state_dict()`; bfloat16 becomes float32.
        num_heads: positive int, as in the module.
        norm_first, activation, dropout: as in the module; an attention takes only `dropout`.
        epsilon: positive number, `layer_norm_eps` of the module.
    Returns:
        A built layer or model with the same weights.
    Raises:
        ValueError: the state is of none of these modules; weights are missing, unknown, or of other
            shapes, all of which are listed; `num_heads` does not divide the width; the attention
            has `bias_k` and `bias_v`.
    Example: the weights of an `nn.MultiheadAttention(8, 2)`.
        >>> state = {
        ...     "in_proj_weight": np.ones((24, 8)),
        ...     "in_proj_bias": np.zeros(24),
        ...     "out_proj.weight": np.ones((8, 8)),
        ...     "out_proj.bias": np.zeros(8),
        ... }
        >>> layer = tfattn.convert.from_torch(state, num_heads=2)
        >>> tokens = np.ones((1, 3, 8), "float32")
        >>> tuple(layer(query=tokens, value=tokens).shape)
        (1, 3, 8)
    """
    who = "from_torch"
    state = weights.read(who, state)
    _checks.positive_int(who, "num_heads", num_heads)
    for name in state:
        extra = name.rpartition(".")[2] in ("bias_k", "bias_v")
        weights.refuse(who, name, extra, "tfattn has no keys besides those of the inputs")
    kinds = [kind for name, kind in _KINDS.items() if name in state]
    if not kinds:
        expected = "be the state of an attention or a Transformer module of torch.nn"
        _checks.fail(who, "state", expected, sorted(map(str, state)))
    options: dict[str, Any] = {"num_heads": num_heads, "norm_first": norm_first}
    options |= {"activation": activation, "epsilon": epsilon, "dropout": dropout}
    if kinds[0] == "attention":
        layer = _attention(who, state, num_heads, dropout)
    elif kinds[0] in ("encoder", "decoder"):
        layer = _block(who, kinds[0], state, "", options)
    else:
        layer = _model(who, kinds[0], state, options)
    parts = _parts(who, layer)
    weights.check(who, weights.to_state(parts), state)
    weights.load_state(parts, state)
    return layer


def to_torch(layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    """Converts a layer of tfattn to the state dict of an equivalent module of PyTorch.

        module = torch.nn.TransformerEncoderLayer(width, num_heads, hidden_dim, batch_first=True)
        state = tfattn.convert.to_torch(block)
        module.load_state_dict({name: torch.tensor(array) for name, array in state.items()})

    The inverse of `from_torch`. The module must have the layer's `num_heads`, `norm_first`,
    activation and epsilon, which are not part of a state.

    Args:
        layer: a built `MultiHeadAttention`, `TransformerEncoderBlock` or `TransformerDecoderBlock`,
            or a model that `from_torch` returned.
    Returns:
        Name to array.
    Raises:
        ValueError: another class; a layer that is not built; a feature that PyTorch's module does
            not have, by name: another attention, network or norm, heads of another width.
    Example:
        >>> layer = MultiHeadAttention(num_heads=2, key_dim=4)
        >>> layer.build((None, None, 8), (None, None, 8))
        >>> {name: array.shape for name, array in tfattn.convert.to_torch(layer).items()}
        {'in_proj_weight': (24, 8), 'in_proj_bias': (24,), 'out_proj.weight': (8, 8), \
'out_proj.bias': (8,)}
    """
    return weights.to_state(_parts("to_torch", layer))


def _attention(
    who: str, state: dict[str, np.ndarray], num_heads: int, dropout: float
) -> MultiHeadAttention:
    """An attention with the sizes of the state."""
    width = state["out_proj.weight"].shape[0]
    _checks.divides(who, "num_heads", num_heads, "width", width)
    use_bias = "in_proj_bias" in state or "out_proj.bias" in state
    layer = MultiHeadAttention(num_heads, width // num_heads, dropout=dropout, use_bias=use_bias)
    widths = [
        state[name].shape[-1] if name in state else width
        for name in ("v_proj_weight", "k_proj_weight")
    ]
    layer.build((None, None, width), *((None, None, size) for size in widths))
    return layer


def _block(
    who: str, kind: str, state: dict[str, np.ndarray], above: str, options: dict[str, Any]
) -> TransformerBlock:
    """A block of an encoder or decoder, for the weights whose names begin with `above`."""
    width = _width(state)
    num_heads, dropout, epsilon = (options[x] for x in ("num_heads", "dropout", "epsilon"))
    _checks.divides(who, "num_heads", num_heads, "width", width)
    hidden_dim = state.get(f"{above}linear1.weight", np.empty(1)).shape[0]
    cls = TransformerDecoderBlock if kind == "decoder" else TransformerEncoderBlock
    block = cls(
        num_heads,
        dropout=dropout,
        attention_dropout=dropout,
        norm_first=options["norm_first"],
        feed_forward=PositionwiseFeedForward(
            hidden_dim, activation=options["activation"], dropout=dropout
        ),
        norm=None if epsilon == 1e-5 else keras.layers.LayerNormalization(epsilon=epsilon),
        name=_layer_name(above),
    )
    tokens = (None, None, width)
    block.build(*([tokens, tokens] if kind == "decoder" else [tokens]))
    return block


def _model(
    who: str, kind: str, state: dict[str, np.ndarray], options: dict[str, Any]
) -> keras.Model:
    """A stack of blocks, or a Transformer of two stacks, with the sizes of the state."""

    def stack(kind: str, prefix: str = "") -> list[keras.layers.Layer]:
        layers: list[keras.layers.Layer] = []
        while f"{(above := f'{prefix}layers.{len(layers)}.')}norm1.weight" in state:
            layers.append(_block(who, kind, state, above, options))
        if f"{prefix}norm.weight" in state:
            name = _layer_name(f"{prefix}norm.")
            norm = keras.layers.LayerNormalization(epsilon=options["epsilon"], name=name)
            norm.build((None, None, _width(state)))
            layers.append(norm)
        return layers

    def through(layers: list[keras.layers.Layer], tokens: Any, memory: Any = None) -> Any:
        for layer in layers:
            decodes = isinstance(layer, TransformerDecoderBlock)
            tokens = layer(tokens, memory) if decodes else layer(tokens)
        return tokens

    source, target, memory = (
        keras.Input((None, _width(state)), name=name) for name in ("source", "target", "memory")
    )
    if kind == "encoder stack":
        model = keras.Sequential([source, *stack("encoder")])
    elif kind == "decoder stack":
        model = keras.Model([target, memory], through(stack("decoder"), target, memory))
    else:
        memory = through(stack("encoder", "encoder."), source)
        written = through(stack("decoder", "decoder."), target, memory)
        model = keras.Model([source, target], written)
    model.supports_masking = True  # as all layers do; Keras would warn
    return model


def _width(state: dict[str, np.ndarray]) -> int:
    return next(array.shape[0] for name, array in state.items() if name.endswith("norm1.weight"))


def _layer_name(prefix: str) -> str | None:
    return prefix.rstrip(".").replace(".", "_") or None


def _parts(who: str, layer: keras.layers.Layer) -> list[weights.Part]:
    """The layers with weights and their tables; raises for what PyTorch's modules lack."""
    if not isinstance(layer, keras.Model):
        weights.check_built(who, "layer", layer, (MultiHeadAttention, *blocks.BLOCKS))
        return [("", layer, _table(who, layer))]
    parts: list[weights.Part] = []
    for each in layer.layers:
        if isinstance(each, keras.layers.InputLayer):
            continue
        place = re.fullmatch(r"(encoder_|decoder_)?(layers_\d+|norm)", each.name)
        if place is None or type(each) not in (*blocks.BLOCKS, keras.layers.LayerNormalization):
            expected = "be a model returned by `from_torch`, with only its blocks and norms"
            _checks.fail(who, "layer", expected, each.name)
        parts.append((f"{each.name.replace('_', '.')}.", each, _table(who, each)))
    return parts


def _table(who: str, layer: keras.layers.Layer) -> weights.Table:
    if type(layer) is keras.layers.LayerNormalization:
        return weights.ITSELF
    if type(layer) is MultiHeadAttention:
        blocks.check_attention(who, layer, allowed=("use_bias",))
        maps = (layer.query_dense, layer.key_dense, layer.value_dense)
        same = len({each.kernel.shape[0] for each in maps}) == 1
        return _ATTENTION if same else _OTHER_WIDTHS
    blocks.check_block(who, layer)
    if type(layer) is TransformerEncoderBlock:
        return _ENCODER
    cross = layer.cross_attention
    same = cross and cross.key_dense.kernel.shape[0] == cross.query_dense.kernel.shape[0]
    reason = "PyTorch's decoder has a memory with the width of the target"
    weights.refuse(who, "memory", not same, reason)
    return _DECODER
