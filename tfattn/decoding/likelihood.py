"""The probability of given translations by a model."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from keras import ops

from tfattn import _checks
from tfattn.decoding.compiling import without_gradients
from tfattn.decoding.translation import batches, check_parts, encoded_rows, padded


def log_probabilities(
    model: Any,
    pairs: Iterable[tuple[str, str]],
    source_vocabulary: Any,
    target_vocabulary: Any,
    batch_size: int = 64,
) -> np.ndarray:
    """The log-probability of each target sentence given its source sentence.

        log p(target | source) = Σ log p(token | the tokens before it, source)

    The end token counts as a token of the target.

    Args:
        model: see `translate`; `model((source, target_in))` returns logits `(B, T, V)`.
        pairs: iterable of pairs (source, target) of strings.
        source_vocabulary, target_vocabulary: see `translate`.
        batch_size: positive int, the most pairs at a time.
    Returns:
        float32 `(N,)`, in the order of `pairs`. Unknown words are warned of, as in `translate`.
    Raises:
        ValueError: a vocabulary has another size than the model's; `batch_size` is not a positive
            int; `pairs` contains anything but pairs of strings; a sentence is too long for the
            model.
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> model = Transformer(len(words), num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> pairs = [("a bird", "a bird sings"), ("a bird", "")]
        >>> print(tfattn.decoding.log_probabilities(model, pairs, words, words) < 0)
        [ True  True]
    """
    who = "log_probabilities"
    check_parts(who, model, source_vocabulary, target_vocabulary)
    _checks.positive_int(who, "batch_size", batch_size)
    pairs = _checks.pairs(who, "pairs", pairs)
    sides = []
    vocabularies = source_vocabulary, target_vocabulary
    for i, (side, vocabulary) in enumerate(zip(("source", "target"), vocabularies, strict=True)):
        sentences = [pair[i] for pair in pairs]
        longest = getattr(model, f"max_{side}_length", None)
        argument = f"{side}_vocabulary"
        ids = encoded_rows(who, argument, vocabulary, sentences, longest, "pairs[{}]")
        sides.append(([[*row, vocabulary.end_id] for row in ids], longest))
    (sources, source_positions), (targets, target_positions) = sides
    found = np.zeros(len(pairs), "float32")
    longer = [max(map(len, rows)) for rows in zip(sources, targets, strict=True)]
    for batch in batches(longer, batch_size):
        source = padded([sources[i] for i in batch], batch_size, source_positions)
        target = padded([targets[i] for i in batch], batch_size, target_positions)
        begin = np.full_like(target[:, :1], target_vocabulary.begin_id)
        inputs = source, np.concatenate([begin, target[:, :-1]], axis=1)
        logits = without_gradients(model)(inputs, training=False)
        log_p = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)  # (B, T, V)
        log_p = ops.take_along_axis(log_p, target[..., None], axis=-1)[..., 0]
        sums = np.sum(np.where(target != 0, ops.convert_to_numpy(log_p), 0.0), axis=1)
        found[batch] = sums[: len(batch)]
    return found
