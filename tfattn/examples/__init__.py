"""Trained models to look at, in files of this package. `python -m tfattn.examples` trains them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfattn import _checks
from tfattn.models.transformer import Transformer

if TYPE_CHECKING:
    from tfattn.data.vocabulary import Vocabulary

SIZES: dict[str, dict[str, Any]] = {
    "grammar": {"num_layers": 2, "width": 128, "num_heads": 4, "hidden_dim": 256}
}
FOLDER = Path(__file__).parent


def load_example(name: str) -> "tuple[Transformer, Vocabulary, Vocabulary]":
    """Loads a trained model with its vocabularies, to look at without training.

    "grammar" translates the English sentences of `tfattn.data.toy_translation` to French. It has
    not learned from the tenth of 8,000 pairs that
    `tfattn.data.split_pairs(tfattn.data.toy_translation(8_000))` holds out.

    Args:
        name: "grammar".
    Returns:
        The model, and the vocabularies of source and target.
    Raises:
        ValueError: there is no such example.
    Example:
        >>> model, english, french = tfattn.load_example("grammar")
        >>> tfattn.translate(model, ["the black cat sleeps ."], english, french)
        ['le chat noir dort .']
    """
    if name not in tuple(SIZES):
        _checks.fail("load_example", "name", f"be one of {list(SIZES)}", name)
    from tfattn.data.vocabulary import Vocabulary

    source, target = (
        Vocabulary.load(FOLDER / f"{name}.{side}.json") for side in ("source", "target")
    )
    model = Transformer(len(source), len(target), dropout=0.1, **SIZES[name])
    model.build_for_any()
    model.load_weights(FOLDER / f"{name}.weights.h5")
    return model, source, target
