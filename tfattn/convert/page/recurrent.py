"""A `BahdanauSeq2Seq` for the page, as `recurrent.js` reads it."""

from typing import Any

import keras
import numpy as np

from tfattn.convert import weights
from tfattn.convert.page.weights import embeddings_and_output, rows
from tfattn.layers.attention.scores import AdditiveScore
from tfattn.models.seq2seq import BahdanauSeq2Seq


def settings(who: str, model: BahdanauSeq2Seq) -> dict[str, Any]:
    """The model's settings; raises for features that the page does not have."""
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


def arrays(model: BahdanauSeq2Seq) -> dict[str, np.ndarray]:
    """All weights by name; matrices have a row for each output or token."""
    found = embeddings_and_output(model)
    encoder, decoder = model.encoder, model.decoder
    for cell in (*encoder.forward_cells, *encoder.backward_cells):
        found |= _cell(cell, f"encoder/{cell.name}")
    for cell in decoder.cells:
        found |= _cell(cell, f"decoder/{cell.name}")
    kernels = weights.arrays(decoder.score)
    for part, kernel in (("query", "query"), ("key", "key"), ("v", "score")):
        found[f"decoder/score/{part}.weight"] = kernels[f"{kernel}_kernel"].T
    for bridge in model.bridges:
        found |= rows(bridge, bridge.name)
    return found | rows(decoder.readout, "decoder/readout")


def _cell(cell: keras.layers.GRUCell, name: str) -> dict[str, np.ndarray]:
    """Both linear maps of a cell: of its input and of its state."""
    found = weights.arrays(cell)
    return {
        f"{name}/input.weight": found["kernel"].T,
        f"{name}/input.bias": found["bias"][0],
        f"{name}/recurrent.weight": found["recurrent_kernel"].T,
        f"{name}/recurrent.bias": found["bias"][1],
    }
