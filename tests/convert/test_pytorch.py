"""Round trips of PyTorch's modules, and equal outputs."""

import keras
import ml_dtypes
import numpy as np
import pytest

import tfattn
from tests.convert.parity import close, refused, same_weights, tokens
from tests.helpers.tensors import numpy
from tfattn.convert import from_torch, to_torch

torch = pytest.importorskip("torch")
nn = torch.nn
# Of `nn.Transformer`, whose encoder has no fast path for an odd number of heads.
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")

B, T, S, D, H = 2, 5, 7, 6, 3

ATTENTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "other widths": {"kdim": 11, "vdim": 13},
    "one other width": {"kdim": 11},
}
BLOCKS = {
    "plain": {},
    "pre-norm": {"norm_first": True},
    "gelu": {"activation": "gelu", "layer_norm_eps": 1e-3},
}


def randomized(module):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator) + 0.1)
    return module.eval()


def run(module, *inputs, **masks):
    masks = {name: torch.tensor(mask) for name, mask in masks.items()}
    with torch.no_grad():
        output = module(*map(torch.tensor, inputs), **masks)
    return numpy(output[0] if isinstance(output, tuple) else output)


def padded(length):
    return np.arange(length) < np.array([[length - 2], [length]])


def causal(length):
    return np.tri(length, dtype=bool)


def ours(name):
    """Arguments of `from_torch` for a row of BLOCKS."""
    options = dict(BLOCKS[name])
    epsilon = options.pop("layer_norm_eps", 1e-5)
    return {"num_heads": H, "epsilon": epsilon, **options}


def attention(name):
    return randomized(nn.MultiheadAttention(D, H, batch_first=True, **ATTENTIONS[name]))


def stack(kind, name="plain"):
    options = {"batch_first": True, **BLOCKS[name]}
    norm = nn.LayerNorm(D, eps=options.get("layer_norm_eps", 1e-5)) if "norm" in kind else None
    if kind == "transformer":
        module = nn.Transformer(D, H, 2, 3, 11, **options)
    elif kind == "encoder layer":
        module = nn.TransformerEncoderLayer(D, H, 11, **options)
    elif kind == "decoder layer":
        module = nn.TransformerDecoderLayer(D, H, 11, **options)
    elif kind.startswith("encoder"):
        layer = nn.TransformerEncoderLayer(D, H, 11, **options)
        module = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
    else:
        module = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, 11, **options), 2, norm)
    return randomized(module)


def goes_back(module, layer, fresh):
    """The state comes back bit for bit, and a fresh module loads it."""
    state, back = module.state_dict(), to_torch(layer)
    assert set(back) == set(state)
    for name, array in back.items():
        np.testing.assert_array_equal(array, numpy(state[name]), err_msg=name)
    fresh.load_state_dict({name: torch.tensor(array) for name, array in back.items()})


@pytest.mark.parametrize(
    ("name", "masks"), list(zip(ATTENTIONS, ["none", "padding", "pairs", "padding"], strict=True))
)
def test_from_torch_of_an_attention_computes_the_same_and_goes_back(name, masks):
    options = ATTENTIONS[name]
    query = tokens(B, T, D)
    key = tokens(B, S, options.get("kdim", D), seed=2)
    value = tokens(B, S, options.get("vdim", D), seed=3)
    module = attention(name)
    pairs = np.random.default_rng(5).random((T, S)) < 0.8
    of_theirs, of_ours = {
        "none": ({}, {}),
        "padding": ({"key_padding_mask": ~padded(S)}, {"key_mask": padded(S)}),
        "pairs": ({"attn_mask": ~pairs}, {"attention_mask": pairs}),
    }[masks]
    layer = from_torch(module.state_dict(), num_heads=H, dropout=0.1)
    assert layer.dropout == 0.1
    wanted = run(module, query, key, value, **of_theirs)
    close(layer(query=query, value=value, key=key, **of_ours), wanted)
    goes_back(module, layer, nn.MultiheadAttention(D, H, batch_first=True, **options))
    same_weights(from_torch(to_torch(layer), num_heads=H), layer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("encoder layer", "plain"),
        ("decoder layer", "pre-norm"),
        ("encoder", "gelu"),
        ("encoder and norm", "pre-norm"),
        ("decoder", "gelu"),
        ("decoder and norm", "plain"),
        ("transformer", "pre-norm"),
    ],
)
def test_from_torch_of_blocks_computes_the_same_and_goes_back(kind, name, tmp_path):
    module = stack(kind, name)
    model = from_torch(module.state_dict(), **ours(name), dropout=0.3)
    x, y = tokens(B, S, D), tokens(B, T, D, seed=2)
    decoding = {"tgt_mask": ~causal(T), "memory_key_padding_mask": ~padded(S)}
    if kind.startswith("encoder"):
        # PyTorch's fast path gives zeros where a token is padding.
        wanted = run(module, x, src_key_padding_mask=~padded(S))[padded(S)]
        found = np.asarray(model(x, mask=padded(S)))[padded(S)]
    elif kind.startswith("decoder"):
        wanted = run(module, y, x, tgt_key_padding_mask=~padded(T), **decoding)
        if kind == "decoder layer":
            found = model(y, x, inputs_mask=padded(T), memory_mask=padded(S))
        else:
            found = model([y, x], mask=[padded(T), padded(S)])
    else:
        masks = {"src_key_padding_mask": ~padded(S), "tgt_key_padding_mask": ~padded(T)}
        wanted = run(module, x, y, **masks, **decoding)
        found = model([x, y], mask=[padded(S), padded(T)])
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        close(loaded([x, y]), model([x, y]))
    close(found, wanted)
    goes_back(module, model, stack(kind, name))
    if kind.endswith("layer"):
        assert {model.dropout, model.attention_dropout, model.feed_forward.dropout} == {0.3}
        same_weights(from_torch(to_torch(model), **ours(name)), model)


@pytest.mark.parametrize("kind", ["attention", "encoder and norm"])
def test_from_torch_of_a_state_in_bfloat16_is_in_float32(kind):
    module = (attention("plain") if kind == "attention" else stack(kind)).bfloat16()
    rounded = {name: array.float() for name, array in module.state_dict().items()}
    arrays = {n: numpy(x).astype(ml_dtypes.bfloat16) for n, x in rounded.items()}
    layer = from_torch(rounded, num_heads=H)
    # Parameters need gradients, and NumPy has no bfloat16 of its own.
    for state in (module.state_dict(), dict(module.named_parameters()), arrays):
        same_weights(from_torch(state, num_heads=H), layer)


def test_to_torch_of_a_layer_in_bfloat16_is_read_by_pytorch():
    layer = tfattn.TransformerEncoderBlock(H, 11, dtype="bfloat16")
    layer.build((None, None, D))
    module = nn.TransformerEncoderLayer(D, H, 11)
    module.load_state_dict({name: torch.tensor(array) for name, array in to_torch(layer).items()})
    same_weights(from_torch(module.state_dict(), num_heads=H), layer)


def test_from_torch_hints_at_the_names_of_a_wrapped_module():
    for prefix in ("module.", "_orig_mod.", "module._orig_mod."):
        state = {f"{prefix}{name}": x for name, x in attention("plain").state_dict().items()}
        said = "^from_torch: `state` must be the state of the module itself, such as model.module"
        with pytest.raises(ValueError, match=f"{said}.* Received: state='{prefix}in_proj_weight'"):
            from_torch(state, num_heads=H)


def test_from_torch_lists_all_mismatched_weights_in_one_error():
    state = dict(stack("encoder layer").state_dict())
    state["linear2.weight"] = torch.zeros(5, 11)
    state["self_attn.in_proj_bias"] = torch.zeros(7)
    del state["norm2.bias"]
    state["norm9.bias"] = torch.zeros(13)
    with pytest.raises(ValueError, match="from_torch: the weights must have") as error:
        from_torch(state, num_heads=H)
    assert sorted(str(error.value).splitlines()[1:]) == [
        "  linear2.weight: expected (6, 11), found (5, 11)",
        "  norm2.bias: expected (6,), found none",
        "  norm9.bias: expected none, found (13,)",
        "  self_attn.in_proj_bias: expected (18,), found (7,)",
    ]


@pytest.mark.parametrize(
    ("module", "num_heads", "said"),
    [
        (nn.Linear(2, 3), 1, "`state` must be the state of an attention"),
        (
            nn.TransformerEncoderLayer(D, H, 11, bias=False),
            H,
            r"norm1.bias: expected \(6,\), found none",
        ),
        (nn.MultiheadAttention(D, H, add_bias_kv=True), H, "`bias_k` cannot be converted"),
        (nn.MultiheadAttention(D, H), 4, "`num_heads` must divide `width`=6"),
    ],
)
def test_from_torch_refuses_a_state_that_does_not_fit(module, num_heads, said):
    with pytest.raises(ValueError, match=f"(?s)^from_torch: .*{said}"):
        from_torch(module.state_dict(), num_heads=num_heads)


def test_from_torch_lists_weights_outside_of_a_stack():
    state = {**stack("encoder").state_dict(), "embedding.weight": torch.zeros(13, D)}
    with pytest.raises(ValueError, match=r"embedding.weight: expected none, found \(13, 6\)"):
        from_torch(state, num_heads=H)


def attending(*sizes, **options):
    return tfattn.MultiHeadAttention(H, *sizes, **options)


X, MEMORY = tokens(B, T, D), tokens(B, S, 13)


@pytest.mark.parametrize(
    ("name", "layer", "inputs"),
    [
        ("key_dim", attending(5), [X, X]),
        ("value_dim", attending(2, 5), [X, X]),
        ("output_shape", attending(2, output_shape=5), [X, X]),
        ("positions", attending(2, positions=tfattn.AlibiPositions()), [X, X]),
        ("use_gate", attending(2, use_gate=True), [X, X]),
        ("sliding_window", attending(2, sliding_window=3), [X, X]),
        ("attention_axes", attending(2, attention_axes=-2), [X, X]),
        ("memory", tfattn.TransformerDecoderBlock(H, 11), [X]),
        ("memory", tfattn.TransformerDecoderBlock(H, 11), [X, MEMORY]),
        ("key_dim", tfattn.TransformerEncoderBlock(hidden_dim=11, attention=attending(5)), [X]),
    ],
)
def test_to_torch_names_what_pytorch_has_not(name, layer, inputs):
    layer(*inputs)
    with refused(name):
        to_torch(layer)


def test_to_torch_refuses_other_layers():
    with pytest.raises(ValueError, match="to_torch: `layer` must be one of MultiHeadAttention"):
        to_torch(keras.layers.Dense(3))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    with pytest.raises(
        ValueError, match="to_torch: `layer` must be a model returned by `from_torch`"
    ):
        to_torch(model)
