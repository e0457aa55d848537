"""What tests of files with an encoder and a step share: models, and what their steps must give."""

import keras
import numpy as np
import pytest

import tfattn
from tests.convert.parity import close, randomized
from tests.helpers.tensors import numpy
from tfattn import data, scalings

SOURCE = data.Vocabulary([f"s{i}" for i in range(13)])
TARGET = data.Vocabulary([f"t{i}" for i in range(15)])
IDS = np.array([[4, 7, 9, 1, 5, 3], [16, 8, 3, 0, 0, 0], [11, 5, 5, 3, 0, 0]], "int32")


def within(norm_first=True, **options):
    heads = {"num_heads": 3, "key_dim": 4} | options
    return tfattn.TransformerEncoderBlock(
        hidden_dim=7, attention=tfattn.MultiHeadAttention(**heads), norm_first=norm_first
    )


PLAIN = tfattn.TransformerEncoderBlock(num_heads=3, hidden_dim=7)
MODELS = {
    "two shared layers, learned and rotary positions, one key head": {
        "block": within(
            num_key_value_heads=1,
            value_dim=5,
            positions=tfattn.RotaryPositions(scaling=scalings.linear(2.0)),
        ),
        "positions": tfattn.LearnedPositionalEncoding(23),
        "share_embeddings": True,
        "num_layers": 2,
    },
    "relative, sinks, an additive score": {
        "block": within(
            norm_first=False,
            positions=tfattn.RelativePositionBias(bidirectional=False),
            normalizer=tfattn.AttentionSinks(),
            score=tfattn.AdditiveScore(5),
        ),
    },
}


def built(share_embeddings=False, num_layers=1, **options):
    sizes = [len(TARGET)] if share_embeddings else [len(SOURCE), len(TARGET)]
    options |= {"num_layers": num_layers, "share_embeddings": share_embeddings}
    model = tfattn.Transformer(*sizes, width=12, **options)
    model.build_for_any()
    return randomized(model)


def assert_steps_are_a_call(model, encode, step, room):
    """Each step has the logits of a call, and caches longer by a position, for any batch and
    lengths; `room` is the length of the caches before the first step.

    Args:
        encode: from source ids to the state, a dict of arrays.
        step: from tokens `(B, T)` and the state to a dict of logits, keys and values.
    """
    attention = model.decoder.blocks[0].self_attention
    for source, length in ((IDS, 7), (np.pad(IDS[:1, :2], [[0, 0], [0, 9]]), 3)):
        rows = (model.num_layers, len(source), attention.num_key_value_heads)
        tokens = np.random.default_rng(1).integers(4, len(TARGET), (len(source), length), "int32")
        tokens[:, 0] = 2
        wanted, state = numpy(model((source, tokens))), encode(source)
        assert state["memory_keys"].shape == (*rows, source.shape[1], attention.key_dim)
        assert state["memory_values"].shape == (*rows, source.shape[1], attention.value_dim)
        for t in range(length):
            assert state["keys"].shape == (*rows, t + room, attention.key_dim)
            assert state["values"].shape == (*rows, t + room, attention.value_dim)
            found = step(tokens[:, : t + 1], state)
            close(found.pop("logits"), wanted[:, t], rtol=1e-5)
            state |= found


def refuses_models(convert, who):
    """`convert(model)` refuses models of which no steps are written."""
    with pytest.raises(ValueError, match=f"{who}: `model` must be a Transformer"):
        convert(tfattn.BahdanauSeq2Seq(5, width=2, units=2))
    with pytest.raises(ValueError, match="`model` must be built"):
        convert(tfattn.Transformer(17, 19, num_layers=1, width=12, block=PLAIN))
    for dtype in ("mixed_float16", "float64"):
        with pytest.raises(ValueError, match=f"`model` must compute in float32: .*'{dtype}'"):
            convert(built(num_heads=3, hidden_dim=7, dtype=dtype))
    plain = built(block=PLAIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.backend, "backend", lambda: "jax")
        with pytest.raises(ValueError, match=f"{who}: `model` must be on the TensorFlow backend"):
            convert(plain)
