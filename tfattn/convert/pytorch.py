"""PyTorch's attention and Transformer modules, as state dicts."""

import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn.convert import blocks, weights
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.configs import keras_object
from tfattn.layers.transformer.block import TransformerBlock
from tfattn.layers.transformer.decoder_block import TransformerDecoderBlock
from tfattn.layers.transformer.encoder_block import TransformerEncoderBlock

_MAPS = blocks.attention_maps("", "")
# Path of each part below a block to the module's name.
_ENCODER = {
    **blocks.attention_maps("self_attention/", "self_attn."),
    "self_attention_norm/norm": "norm1",
    "feed_forward/inner": "linear1",
    "feed_forward/outer": "linear2",
    "feed_forward_norm/norm": "norm2",
}
_DECODER = {
    **_ENCODER,
    **blocks.attention_maps("cross_attention/", "multihead_attn."),
    "cross_attention_norm/norm": "norm2",
    "feed_forward_norm/norm": "norm3",
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
    _checks.boolean(who, "norm_first", norm_first)
    _checks.positive_number(who, "epsilon", epsilon)
    _checks.probability(who, "dropout", dropout)
    if keras_object(who, "activation", activation) is None:
        _checks.fail(who, "activation", "be an activation", activation)
    state = weights.read(who, state)
    _checks.positive_int(who, "num_heads", num_heads)
    for name in state:
        extra = name.rpartition(".")[2] in ("bias_k", "bias_v")
        weights.refuse(who, name, extra, "tfattn has no keys besides those of the inputs")
    kinds = [kind for name, kind in _KINDS.items() if name in state]
    if not kinds:
        expected = "be the state of an attention or a Transformer module of torch.nn"
        _checks.fail(who, "state", expected, sorted(map(str, state)))
    if kinds[0] == "attention":
        return _attention_from(who, state, num_heads, dropout)
    options = {
        "num_heads": num_heads,
        "norm_first": norm_first,
        "activation": activation,
        "epsilon": epsilon,
        "dropout": dropout,
        "attention_dropout": dropout,
        "inner_dropout": dropout,
    }
    if kinds[0] in ("encoder", "decoder"):
        cls = TransformerDecoderBlock if kinds[0] == "decoder" else TransformerEncoderBlock
        return _block_from(who, cls, state, options)
    return _stack_from(who, kinds[0], state, options)


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
    who = "to_torch"
    if isinstance(layer, keras.Model):
        return _stack_to(who, layer)
    weights.check_type(who, "layer", layer, (MultiHeadAttention, *blocks.BLOCKS))
    weights.check_built(who, layer)
    if type(layer) is MultiHeadAttention:
        return _attention_to(who, layer)
    return _block_to(who, layer)


def _attention_from(
    who: str, state: dict[str, np.ndarray], num_heads: int, dropout: float
) -> MultiHeadAttention:
    width = state["out_proj.weight"].shape[0]
    _checks.divides(who, "num_heads", num_heads, "width", width)
    use_bias = "in_proj_bias" in state or "out_proj.bias" in state
    layer = MultiHeadAttention(num_heads, width // num_heads, dropout=dropout, use_bias=use_bias)
    widths = [
        state[name].shape[-1] if name in state else width
        for name in ("v_proj_weight", "k_proj_weight")
    ]
    layer.build((None, None, width), *((None, None, size) for size in widths))
    weights.check(who, _attention_to(who, layer), state)
    weights.load_rows(layer, _MAPS, _unpacked(state))
    return layer


def _attention_to(who: str, layer: MultiHeadAttention) -> dict[str, np.ndarray]:
    weights.check_plain(who, layer)
    width = layer.query_dense.kernel.shape[0]
    out = layer.output_dense.kernel.shape[-1]
    reason = "the width of a head must be the width of the query / num_heads in PyTorch"
    weights.refuse(who, "key_dim", layer.key_dim * layer.num_heads != width, reason)
    weights.refuse(
        who,
        "value_dim",
        layer.value_dim != layer.key_dim,
        "keys and values have one size in PyTorch",
    )
    weights.refuse(
        who, "output_shape", out != width, "the output has the width of the query in PyTorch"
    )
    return _packed(weights.to_rows(layer, _MAPS))


def _block_from(
    who: str, cls: type, state: dict[str, np.ndarray], options: dict[str, Any], **named: Any
) -> TransformerBlock:
    width, num_heads = state["norm1.weight"].shape[0], options["num_heads"]
    _checks.divides(who, "num_heads", num_heads, "width", width)
    if "linear1.weight" not in state:
        weights.check(who, {"linear1.weight": np.empty((0, width))}, {})
    decodes = cls is TransformerDecoderBlock
    sizes = blocks.BlockSpec(
        width=width,
        key_dim=width // num_heads,
        hidden_dim=state["linear1.weight"].shape[0],
        memory_width=width if decodes else None,
        **options,
    )
    block = blocks.from_spec(cls, sizes, **named)
    weights.check(who, _block_to(who, block), state)
    weights.load_rows(block, _DECODER if decodes else _ENCODER, _unpacked(state))
    return block


def _block_to(who: str, block: TransformerBlock) -> dict[str, np.ndarray]:
    sizes = blocks.to_spec(who, block)
    decodes = type(block) is TransformerDecoderBlock
    other_memory = decodes and sizes.memory_width != sizes.width
    wide = sizes.key_dim * sizes.num_heads != sizes.width
    reason = "the width of a head must be the width of the inputs / num_heads in PyTorch"
    weights.refuse(
        who, "memory", other_memory, "PyTorch's decoder has a memory with the width of the target"
    )
    weights.refuse(who, "key_dim", wide, reason)
    return _packed(weights.to_rows(block, _DECODER if decodes else _ENCODER))


def _stack_from(
    who: str, kind: str, state: dict[str, np.ndarray], options: dict[str, Any]
) -> keras.Model:
    used: set[str] = set()

    def stack(cls: type[TransformerBlock], prefix: str) -> list[keras.layers.Layer]:
        """The blocks below a prefix, and the norm after them if there is one."""
        layers: list[keras.layers.Layer] = []
        while f"{prefix}layers.{len(layers)}.norm1.weight" in state:
            above = f"{prefix}layers.{len(layers)}."
            found = weights.below(state, above)
            used.update(above + name for name in found)
            layers.append(_block_from(who, cls, found, options, name=_layer_name(above)))
        if f"{prefix}norm.weight" not in state:
            return layers
        found = weights.below(state, f"{prefix}norm.")
        used.update(f"{prefix}norm.{name}" for name in found)
        norm = keras.layers.LayerNormalization(
            epsilon=options["epsilon"], name=_layer_name(f"{prefix}norm.")
        )
        norm.build((None, None, found["weight"].shape[0]))
        weights.check(who, weights.to_rows(norm, {"": ""}), _dotted(found))
        weights.load_rows(norm, {"": ""}, _dotted(found))
        return [*layers, norm]

    above = {"encoder": "encoder.", "decoder": "decoder."} if kind == "transformer" else {}
    encoder = decoder = []
    if kind != "decoder stack":
        encoder = stack(TransformerEncoderBlock, above.get("encoder", ""))
    if kind != "encoder stack":
        decoder = stack(TransformerDecoderBlock, above.get("decoder", ""))
    weights.check(who, {}, {name: array for name, array in state.items() if name not in used})
    width = state[next(name for name in used if name.endswith("norm1.weight"))].shape[0]
    first = keras.Input((None, width), name="target" if kind == "decoder stack" else "source")
    if kind == "encoder stack":
        return _masking(keras.Sequential([first, *encoder]))
    second = keras.Input((None, width), name="memory" if kind == "decoder stack" else "target")
    memory, target = (second, first) if kind == "decoder stack" else (first, second)
    for layer in encoder:
        memory = layer(memory)
    for layer in decoder:
        decodes = isinstance(layer, TransformerDecoderBlock)
        target = layer(target, memory) if decodes else layer(target)
    return _masking(keras.Model([first, second], target))


def _masking(model: keras.Model) -> keras.Model:
    """Declares that the model's layers propagate masks, to avoid a warning of Keras."""
    model.supports_masking = True
    return model


def _stack_to(who: str, model: keras.Model) -> dict[str, np.ndarray]:
    result = {}
    for layer in model.layers:
        if isinstance(layer, keras.layers.InputLayer):
            continue
        parts = re.fullmatch(r"(encoder_|decoder_)?(?:layers_(\d+)|norm)", layer.name)
        if parts is None or type(layer) not in (*blocks.BLOCKS, keras.layers.LayerNormalization):
            expected = "be a model returned by `from_torch`, with only its blocks and norms"
            _checks.fail(who, "layer", expected, layer.name)
        above = (parts[1] or "").replace("_", ".")
        if type(layer) is keras.layers.LayerNormalization:
            rows, above = weights.to_rows(layer, {"": ""}), f"{above}norm"
        else:
            rows, above = _block_to(who, layer), f"{above}layers.{parts[2]}."
        result.update({above + name: array for name, array in rows.items()})
    return result


def _layer_name(prefix: str) -> str:
    return prefix.rstrip(".").replace(".", "_")


def _dotted(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f".{name}": array for name, array in state.items()}


def _packed(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Joins the query, key and value matrices of an attention if their inputs have equal widths."""
    result = {}
    for name, array in rows.items():
        prefix, found, leaf = name.rpartition("q_proj.")
        if found:
            parts = [rows[f"{prefix}{part}_proj.{leaf}"] for part in "qkv"]
            if leaf == "bias" or len({part.shape for part in parts}) == 1:
                result[f"{prefix}in_proj_{leaf}"] = np.concatenate(parts)
                continue
            result.update(
                {f"{prefix}{k}_proj_weight": w for k, w in zip("qkv", parts, strict=True)}
            )
        elif re.search(r"(^|\.)[kv]_proj\.", name) is None:
            result[name] = array
    return result


def _unpacked(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of `_packed`."""
    result = {}
    for name, array in state.items():
        prefix, found, leaf = name.rpartition("in_proj_")
        if found:
            parts = zip("qkv", np.split(array, 3), strict=True)
            result.update({f"{prefix}{k}_proj.{leaf}": part for k, part in parts})
        else:
            result[re.sub(r"(^|\.)([qkv])_proj_weight$", r"\1\2_proj.weight", name)] = array
    return result
