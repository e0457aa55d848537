"""Converters of weights from and to other libraries.

A converter is a module for one library, with a function for each way:

    from_x(layer_or_state) -> an equivalent layer or model of tfattn
    to_x(layer) -> the other library's layer, or a state for it

A round trip leaves the weights equal, bit for bit. A `ValueError` names each feature that only one
of the two libraries has; nothing is ignored. One `ValueError` lists all weights with unexpected
shapes.
"""

from tfattn.convert.ctranslate2 import to_ctranslate2
from tfattn.convert.ctranslate2_folder import CTranslate2
from tfattn.convert.graphs import to_litert, to_onnx
from tfattn.convert.keras import from_keras, to_keras
from tfattn.convert.marian import from_marian, ids_from_marian, ids_to_marian, to_marian
from tfattn.convert.marian_folder import load_marian, marian_search
from tfattn.convert.page.page import to_page
from tfattn.convert.pytorch import from_torch, to_torch

__all__ = [
    "CTranslate2",
    "from_keras",
    "from_marian",
    "from_torch",
    "ids_from_marian",
    "ids_to_marian",
    "load_marian",
    "marian_search",
    "to_ctranslate2",
    "to_keras",
    "to_litert",
    "to_marian",
    "to_onnx",
    "to_page",
    "to_torch",
]
