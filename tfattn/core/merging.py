"""Attention over parts of the keys, joined to attention over all of them."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core import softmax
from tfattn.core.tensors import given_floats


def merge_attentions(outputs: Sequence[Any], log_sum_exps: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Joins attentions of the same queries over different keys into attention over all the keys.

        log_sum_exp = log Σ_i exp(log_sum_exp_i)
        output      = Σ_i exp(log_sum_exp_i − log_sum_exp) · output_i

    The output and every gradient are exact, so keys may be spread over machines, or come one part
    after the other. A part in which a query sees no key adds nothing to its output. Causal masks,
    windows and ALiBi depend on positions, which each call counts from 0: pass the part's columns of
    an array instead.

    Args:
        outputs: the output of `attend` for each part, `(B, T, Dv)` or `(B, H, T, Dv)`.
        log_sum_exps: the log of the sums of `attend` for each part, by `return_log_sum_exp`,
            `(B, T)` or `(B, H, T)`.
    Returns:
        (output, log_sum_exp) over all keys, in the shapes and dtypes of the parts; the log is in
        float32 or wider. Both can be merged again.
    Raises:
        ValueError: `outputs` is empty, or the numbers or shapes of tensors differ.
    Example:
        >>> query, key = np.ones((1, 2, 3), "float32"), np.ones((1, 7, 3), "float32")
        >>> parts = (key[:, :4], key[:, 4:])
        >>> parts = [attend(query, part, return_log_sum_exp=True) for part in parts]
        >>> output, log_sum_exp = merge_attentions(*zip(*parts))
        >>> bool(keras.ops.max(keras.ops.abs(output - attend(query, key))) < 1e-6)
        True

    Source: Milakov, Gimelshein 2018, arXiv:1805.02867, section 3.1; Rabe, Staats 2021,
    arXiv:2112.05682, section 3.
    """
    who = "merge_attentions"
    outputs = _parts(who, "outputs", outputs, "(B, T, Dv) or (B, H, T, Dv)")
    sums = _parts(who, "log_sum_exps", log_sum_exps, "(B, T) or (B, H, T)")
    if not outputs:
        _checks.fail(who, "outputs", "hold at least one output", [])
    if len(sums) != len(outputs):
        expected = f"hold one tensor for each of the {len(outputs)} outputs"
        _checks.fail(who, "log_sum_exps", expected, f"{len(sums)} tensors")
    whole = tuple(outputs[0].shape)
    _checks.rank(who, "outputs", whole, (3, 4), "(B, T, Dv) or (B, H, T, Dv)")
    wanted = (("outputs", outputs, whole), ("log_sum_exps", sums, whole[:-1]))
    for name, tensors, shape in wanted:
        for tensor in tensors:
            _checks.rank(who, name, tensor.shape, (len(shape),), str(shape))
            pairs = zip(tensor.shape, shape, strict=True)
            if any(None not in pair and pair[0] != pair[1] for pair in pairs):
                _checks.fail(who, name, f"all have shape {shape}", tuple(tensor.shape))
    # A softmax over the parts, each like one key with its log of the sum as the score.
    dtype = outputs[0].dtype
    wide = keras.backend.result_type(*(x.dtype for x in sums), "float32")
    parts = ops.stack([ops.cast(x, wide) for x in sums], axis=-1)  # (..., T, parts)
    some = softmax.not_hidden(parts)
    weights = softmax.normalize(parts, some)
    merged = sum(
        weights[..., i : i + 1] * ops.cast(x, keras.backend.result_type(x.dtype, wide))
        for i, x in enumerate(outputs)
    )
    return ops.cast(merged, dtype), softmax.log_sum_exp(parts, some)


def _parts(who: str, argument: str, tensors: Any, letters: str) -> list[Tensor]:
    if not isinstance(tensors, Iterable) or isinstance(tensors, str | bytes | dict):
        _checks.fail(who, argument, f"be a sequence of tensors {letters}", tensors)
    return [given_floats(who, argument, x, letters) for x in tensors]
