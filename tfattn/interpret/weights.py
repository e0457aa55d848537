"""Summaries of attention weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import ArrayLike

_ROUNDING = 0.01  # of the sum of a row, also in bfloat16


def attention_rollout(weights: Mapping[str, ArrayLike], residual: float = 0.5) -> np.ndarray:
    """Self-attention of a stack of layers, followed down to the inputs.

        A_l     = residual · I + (1 − residual) · mean over heads of the weights of layer l
        rollout = A_L · … · A_2 · A_1

    Without values and feed-forward networks: where information could come from, not what was used.

    Args:
        weights: `(B, H, T, T)` or `(B, T, T)` of the layers of one stack, the first one first, as
            `tfattn.attention_weights` returns them; of an encoder or a decoder, not of both.
        residual: number in [0, 1), the weight of the residual connection. Defaults to 0.5.
    Returns:
        `(B, T, T)`, float64: in row t the shares of the inputs in token t of the last layer. Each
        row sums to 1. A query that attends to nothing is copied.
    Raises:
        ValueError: weights other than of self-attention over the same tokens; a row above 1.
    Example:
        >>> layer = TransformerEncoderBlock(num_heads=2, hidden_dim=8)
        >>> weights = attention_weights(layer, np.ones((1, 3, 4), "float32"))
        >>> print(tfattn.interpret.attention_rollout(weights)[0].round(2))
        [[0.67 0.17 0.17]
         [0.17 0.67 0.17]
         [0.17 0.17 0.67]]

    Source: Abnar and Zuidema 2020, arXiv:2005.00928, section 3, with the mean of the heads.
    """
    who = "attention_rollout"
    residual = _checks.probability(who, "residual", residual)
    rollout: Any = None
    for path, layer in _by_head(who, weights).items():
        mixed = layer.mean(axis=1)  # (B, T, T)
        shape = mixed.shape[:1] + mixed.shape[-1:] * 2 if rollout is None else rollout.shape
        if mixed.shape != shape:
            expected = f"hold weights of self-attention, here {shape} for each head"
            _checks.fail(who, f"weights[{path!r}]", expected, mixed.shape)
        step = residual * np.eye(shape[-1]) + (1.0 - residual) * mixed
        total = step.sum(axis=-1, keepdims=True)
        step = np.where(total > residual, step, np.eye(shape[-1]))
        step = step / step.sum(axis=-1, keepdims=True)
        rollout = step if rollout is None else step @ rollout
    return rollout


def head_entropy(
    weights: Mapping[str, ArrayLike], query_mask: ArrayLike | None = None
) -> dict[str, np.ndarray]:
    """How widely each head looks: the entropy of its weights, in nats.

        entropy = −Σ_s weights[s] · log weights[s],  mean over queries

    It is 0 for a head that looks at one token, and log n for one that looks at n tokens alike. It
    is not an importance: a head may look sharply at a token that does not matter.

    Args:
        weights: `(B, H, T, S)` or `(B, T, S)` by layer, as from `tfattn.attention_weights`.
        query_mask: bool `(B, T)`, True = real query. Queries without a key never count.
    Returns:
        dict from the layer to `(H,)`, float64; NaN where no query is left.
    Raises:
        ValueError: weights of another rank, that do not fit `query_mask`; a row above 1.
    Example:
        >>> weights = {"layer": np.array([[[[1.0, 0.0, 0.0]], [[0.5, 0.5, 0.0]]]])}
        >>> print(tfattn.interpret.head_entropy(weights)["layer"].round(3))
        [0.    0.693]

    Source: Vig and Belinkov 2019, arXiv:1906.04284.
    """
    who = "head_entropy"
    layers, entropies = _by_head(who, weights), {}
    for path, layer in layers.items():
        real = layer.sum(axis=-1) > 0  # (B, H, T)
        if query_mask is not None:
            mask = ops.convert_to_numpy(query_mask)
            _checks.boolean_dtype(who, "query_mask", str(mask.dtype), "`mask != 0` is")
            if mask.shape != (layer.shape[0], layer.shape[2]):
                expected = f"have shape (B, T), for {path} {(layer.shape[0], layer.shape[2])}"
                _checks.fail(who, "query_mask", expected, mask.shape)
            real = real & mask[:, None]
        entropy = -np.sum(layer * np.log(np.where(layer > 0, layer, 1.0)), axis=-1)  # (B, H, T)
        counts = real.sum(axis=(0, 2))
        total = np.where(real, entropy, 0.0).sum(axis=(0, 2))
        entropies[path] = np.where(counts > 0, total / np.maximum(counts, 1), np.nan) + 0.0
    return entropies


def _by_head(who: str, weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The weights by layer as float64 `(B, H, T, S)`."""
    _checks.mapping(who, "weights", weights)
    if not weights:
        _checks.fail(who, "weights", "hold the weights of one layer or more", weights)
    layers = {}
    for path, layer in weights.items():
        name = f"weights[{path!r}]"
        letters = "(B, H, T, S) or (B, T, S)"
        _checks.array(who, name, layer, letters)
        _checks.rank(who, name, layer.shape, (3, 4), letters)
        array = ops.convert_to_numpy(layer).astype("float64")
        if not (array >= 0).all():  # NaN too
            _checks.fail(who, name, "hold numbers of at least 0", array.min())
        total = float(array.sum(axis=-1).max(initial=0.0))
        if total > 1.0 + _ROUNDING:  # below 1 for a masked query, or with a sink
            _checks.fail(who, name, "have rows that sum to at most 1", total)
        layers[path] = array if array.ndim == 4 else array[:, None]
    return layers
