"""Export of a translator to an interactive page."""

import base64
import importlib.resources
import os
from collections.abc import Sequence
from typing import Any

from tfattn import _checks
from tfattn._files import replacing
from tfattn.convert import weights
from tfattn.convert.page import content
from tfattn.decoding.translate import check_parts
from tfattn.models.seq2seq import BahdanauSeq2Seq
from tfattn.models.transformer import Transformer
from tfattn.plot import page

SCRIPTS = (
    *("model.js", "recurrent.js", "vocabulary.js", "search.js", "text.js", "page.js"),
    *("attention.js", "walk.js", "beams.js", "view.js"),
)
_SETTINGS = {
    Transformer: content.of_transformer,
    BahdanauSeq2Seq: content.of_recurrent,
}


def to_page(
    model: Transformer | BahdanauSeq2Seq,
    source_vocabulary: Any,
    target_vocabulary: Any,
    path: str | os.PathLike[str],
    examples: Sequence[str] = (),
    title: str | None = None,
    quantization: str = "int8",
) -> None:
    """Writes an HTML file that translates in the browser, and shows the attention of each step.

        tfattn.convert.to_page(model, source_words, target_words, "translator.html", examples)

    The file contains the model, its vocabularies and all code. It opens from disk, and its policy
    forbids the browser to load anything. A reader types a sentence and reads its translation,
    steps through it, chooses other words, switches heads off, hides source words, and follows the
    numbers of a query.

    Matrices are rounded: with int8, to 255 steps between minus and plus the greatest weight of a
    row. The page computes in float32 what the model with the rounded weights computes, without
    dropout.

    Supported: a `Transformer` of blocks with layer normalization before or after each sublayer,
    feed-forward layers with ReLU, GELU, SiLU or tanh, and sinusoids, learned positions or none; a
    `BahdanauSeq2Seq` with GRU cells and the additive score; one embedding or several; vocabularies
    of words between white space, of `Characters`, or of subwords.

    Args:
        model: a built `Transformer` or `BahdanauSeq2Seq`.
        source_vocabulary, target_vocabulary: such as two of `tfattn.data.Vocabulary`, or the same
            `SubwordVocabulary` twice.
        path: path of the file. Its folder must exist.
        examples: sentences to choose from.
        title: heading of the page. Defaults to one in the reader's language.
        quantization: "int8", or "float16" for a file of about twice the size.
    Raises:
        ValueError: another class; a model that is not built; a feature that the page does not
            have, by name; vocabularies of other sizes.
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> model = Transformer(len(words), num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> model.build_for_any()
        >>> tfattn.convert.to_page(model, words, words, "page.html")  # doctest: +SKIP
    """
    who = "to_page"
    weights.check_built(who, "model", model, _SETTINGS)
    of_model = _SETTINGS[type(model)](who, model)
    check_parts(who, model, source_vocabulary, target_vocabulary)
    path = _checks.path(who, "path", path)
    examples = _checks.strings(who, "examples", examples)
    if quantization not in content.QUANTIZATIONS:
        _checks.fail(who, "quantization", f"be one of {content.QUANTIZATIONS}", quantization)
    tensors, stored = content.to_bytes(weights.rows(model), quantization)
    source = content.of_vocabulary(who, "source_vocabulary", source_vocabulary)
    target = content.of_vocabulary(who, "target_vocabulary", target_vocabulary)
    data = {
        "settings": {**of_model, "shared": model.share_embeddings},
        "tensors": tensors,
        "weights": base64.b64encode(stored).decode(),
        "source": source,
        "target": None if target == source else target,
        "examples": examples,
        "title": title,
    }
    with replacing(path) as unfinished:
        unfinished.write_text(page.fill(_template(), data, title or "tfattn"), encoding="utf-8")


def _template() -> str:
    """The page with its styles and scripts, which are files of their own."""
    folder = importlib.resources.files("tfattn.convert.page")
    style, *scripts = (folder.joinpath(name).read_text("utf-8") for name in ("style.css", *SCRIPTS))
    text = folder.joinpath("page.html").read_text("utf-8")
    return text.replace("{{style}}", style).replace("{{script}}", "\n".join(scripts))
