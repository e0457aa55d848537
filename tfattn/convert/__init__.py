"""Weights from and to other libraries.

A converter is a module for one library, with a function for each way:

    from_x(layer_or_state) -> a tfattn layer or model that computes the same
    to_x(layer) -> the other library's layer, or the state that it loads

`from_x` takes the other library's object, or the state in its files, such as a dict from names to
arrays. It returns a built layer. Sizes are read from the weights where possible; otherwise they are
arguments. `to_x` is the inverse: after both, the weights are the same, bit for bit. Whatever only
one of the two libraries has is refused by a `ValueError` that names it. Nothing is left out without
an error. Weights of other shapes than expected are all listed in one `ValueError`.

A converter may import all other parts of tfattn, and none of them imports a converter. The other
library is imported inside the function that needs it, through `tfattn._optional`. A function that
needs only the arrays of a state does not import it. The test of a converter compares the outputs of
both libraries, with random weights, padding and masks.
"""

from tfattn.convert.ctranslate2 import to_ctranslate2
from tfattn.convert.ctranslate2_folder import CTranslate2
from tfattn.convert.keras import from_keras, to_keras
from tfattn.convert.keras_hub import from_keras_hub, to_keras_hub
from tfattn.convert.marian import from_marian, ids_from_marian, ids_to_marian, to_marian
from tfattn.convert.onnx import to_onnx
from tfattn.convert.pytorch import from_torch, to_torch

__all__ = [
    "CTranslate2",
    "from_keras",
    "from_keras_hub",
    "from_marian",
    "from_torch",
    "ids_from_marian",
    "ids_to_marian",
    "to_ctranslate2",
    "to_keras",
    "to_keras_hub",
    "to_marian",
    "to_onnx",
    "to_torch",
]
