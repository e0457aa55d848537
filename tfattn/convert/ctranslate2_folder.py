"""Translation by CTranslate2 with a folder of `to_ctranslate2`."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfattn import _checks, _optional, data
from tfattn.convert import folders
from tfattn.decoding.translate import encoded_rows, limits


class CTranslate2:
    """Translates by CTranslate2, with a folder of `tfattn.convert.to_ctranslate2`.

        served = tfattn.convert.CTranslate2("served", intra_threads=1, inter_threads=2)
        served.translate(["a cat sees a bird"], num_beams=5)

    Greedy search gives the translations of `tfattn.translate`; for beam search see `translate`.

    Args:
        folder: path of the folder.
        tokenizers: pair for source and target: your own tokenizer functions, which are not part of
            the files. Defaults to None for both.
        **options: options of `ctranslate2.Translator`, such as `device="cuda"`, `compute_type`,
            `intra_threads`, the threads per batch, and `inter_threads`, the parallel batches.
    Attributes:
        translator: the `ctranslate2.Translator`.
        source_vocabulary, target_vocabulary: vocabularies of the folder.
        max_length: maximum number of tokens of a sentence, as positions allow; None for no limit.
    Raises:
        FileNotFoundError: the folder or a vocabulary does not exist.
        ValueError: a tokenizer is missing or superfluous; CTranslate2 rejects the options.
        ImportError: ctranslate2 is not installed.
    Example: see `tfattn.convert.to_ctranslate2`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        tokenizers: Sequence[Callable[[str], list[str]] | None] = (None, None),
        **options: Any,
    ):
        folder = _checks.path("CTranslate2", "folder", folder)
        tokenizers = _checks.pair("CTranslate2", "tokenizers", tokenizers)
        engine = _optional.find("ctranslate2", "serve", "CTranslate2")
        self.source_vocabulary, self.target_vocabulary = (
            data.load_vocabulary(os.path.join(folder, name), tokenizer)
            for name, tokenizer in zip(folders.VOCABULARIES, tokenizers, strict=True)
        )
        record = json.loads(Path(folder, "config.json").read_text("utf-8"))
        self.max_length = record["tfattn_max_length"]
        self.translator = engine.Translator(folder, **options)

    def translate(
        self,
        sentences: Iterable[str],
        num_beams: int = 1,
        length_penalty: float = 1.0,
        batch_size: int = 64,
        max_length: int | None = None,
    ) -> list[str]:
        """Translates sentences, as `tfattn.translate` does.

            score = Σ log p(token | the tokens before it) / length ** length_penalty

        The score of beams is that of `tfattn.BeamSearch`: the end token counts in the sum and in
        the length. There a complete hypothesis stays until better ones replace it, and the search
        stops when no open one can reach a better score. CTranslate2 replaces it by an open one, and
        stops after `num_beams` complete ones, or with a `length_penalty` of 0 when the best is one.

        Args:
            sentences: iterable of strings.
            num_beams: positive int; 1 is greedy search.
            length_penalty: number of at least 0.
            batch_size: positive int, the maximum number of sentences per batch.
            max_length: positive int, the maximum number of tokens to write for a sentence. Defaults
                to that of `tfattn.translate`, or to the attribute `max_length` if that is less.
        Returns:
            A list of strings, in the order of `sentences`; "" for an empty sentence.
        Raises:
            ValueError: `sentences` is a single string, or contains anything but strings; a number
                is another than those above; a sentence or `max_length` exceeds the positions.
        """
        who, source = "CTranslate2.translate", self.source_vocabulary
        sentences = _checks.strings(who, "sentences", sentences)
        num_beams = _checks.positive_int(who, "num_beams", num_beams)
        length_penalty = _checks.non_negative_number(who, "length_penalty", length_penalty)
        batch_size = _checks.positive_int(who, "batch_size", batch_size)
        encoded = encoded_rows(
            who, "source_vocabulary", source, sentences, self.max_length, "sentences[{}]"
        )
        full = [i for i, ids in enumerate(encoded) if ids]
        translations = [""] * len(sentences)
        most = limits([len(encoded[i]) + 1 for i in full], self.max_length)
        if max_length is not None:
            most[:] = _checks.positive_int(who, "max_length", max_length)
            if self.max_length is not None and max_length > self.max_length:
                expected = f"be at most {self.max_length}, the number of positions"
                _checks.fail(who, "max_length", expected, max_length)
        # Greedy search can share the largest limit; the best beam depends on the limit.
        ends = np.full_like(most, most.max(initial=0)) if num_beams == 1 else most
        results: dict[int, Any] = {}
        for end in np.unique(ends):
            places = [i for i, one in zip(full, ends, strict=True) if one == end]
            found = self.translator.translate_batch(
                [[source.words[j] for j in encoded[i]] for i in places],
                beam_size=num_beams,
                length_penalty=length_penalty,
                max_batch_size=batch_size,
                batch_type="examples",
                max_input_length=0,
                min_decoding_length=0,  # allow empty translations
                suppress_sequences=[[self.target_vocabulary.words[0]]],  # padding
                max_decoding_length=int(end),
                return_end_token=True,  # counts in the length
                asynchronous=True,  # threads can proceed to the next limit
            )
            results |= dict(zip(places, found, strict=True))
        ids_of = {word: i for i, word in enumerate(self.target_vocabulary.words)}
        for i, length in zip(full, most, strict=True):
            tokens = [ids_of[token] for token in results[i].result().hypotheses[0][:length]]
            translations[i] = self.target_vocabulary.decode(tokens)
        return translations
