"""What tests of files with an encoder and a step share: models, and the code of their page."""

import pathlib
import re

import keras
import numpy as np

import tfattn
from tests.convert.parity import randomized
from tfattn import data, scalings

SOURCE = data.Vocabulary([f"s{i}" for i in range(13)])
TARGET = data.Vocabulary([f"t{i}" for i in range(15)])
IDS = np.array([[4, 7, 9, 1, 5, 3], [16, 8, 3, 0, 0, 0], [11, 5, 5, 3, 0, 0]], "int32")


def within(**options):
    heads = {"num_heads": 3, "key_dim": 4} | options
    return tfattn.TransformerEncoderBlock(
        hidden_dim=7, attention=tfattn.MultiHeadAttention(**heads), norm_first=True
    )


PLAIN = tfattn.TransformerEncoderBlock(num_heads=3, hidden_dim=7)
NOTHING_ADDED = {"positions": keras.layers.Identity()}
MODELS = {
    "shared, learned positions": {
        "block": PLAIN,
        "positions": tfattn.LearnedPositionalEncoding(23),
        "share_embeddings": True,
        "num_layers": 2,
    },
    "rotary, scaled, one key head": {
        "block": within(
            num_key_value_heads=1,
            value_dim=5,
            positions=tfattn.RotaryPositions(scaling=scalings.linear(2.0)),
        ),
        **NOTHING_ADDED,
    },
    "relative, sinks, an additive score": {
        "block": within(
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


def code_of_the_page():
    """The blocks of `docs/serve.md`."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")
    return re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def function_of_the_page(name):
    """A function, as readers copy it."""
    [code] = [code for code in code_of_the_page() if f"def {name}(" in code]
    definition = re.search(rf"^def {name}\(.*?(?=\n\n\n)", code, re.MULTILINE | re.DOTALL)
    variables = {"np": np}
    exec(definition[0], variables)
    return variables[name]
