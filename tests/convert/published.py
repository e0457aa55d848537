"""The folder of a published translator, with untrained weights, made without PyTorch."""

import json

import keras
import numpy as np
import pytest

import tfattn
from tests.convert import marian_folders as theirs
from tfattn.convert import to_marian


def write_published(folder):
    """Writes the files, and returns the folder."""
    pytest.importorskip("sentencepiece")
    numpy = pytest.importorskip("safetensors.numpy")
    size = theirs.write_tokenizer(folder, shared=True)
    files = {"config": theirs.config, "generation_config": theirs.generation}
    for name, content in files.items():
        text = json.dumps(content(size, shared=True))
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    keras.utils.set_random_seed(0)
    block = tfattn.TransformerDecoderBlock(4, 32)
    positions = tfattn.LearnedPositionalEncoding(128, input_scale=4.0)
    model = tfattn.Transformer(size + 1, num_layers=2, width=16, block=block, positions=positions)
    model.build_for_any()
    model.output_dense.bias.assign([-100.0, *np.zeros(size)])
    state = to_marian(model)
    shared = {"model.shared.weight": state["model.encoder.embed_tokens.weight"]}
    left_out = ("embed_tokens", "embed_positions", "lm_head")
    state = {name: a for name, a in state.items() if not any(each in name for each in left_out)}
    numpy.save_file({**state, **shared}, folder / "model.safetensors")
    return folder
