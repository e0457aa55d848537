"""Attention of tensors: the arguments are checked here, and the engine runs the call."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core import biases, softmax
from tfattn.core.call import AttentionCall
from tfattn.core.engine import dispatch
from tfattn.core.guard import zero_unseen
from tfattn.core.scores import facts_of, scaled_dot_product
from tfattn.core.tensors import check_batch, given_floats


def attend(
    query: Any,
    value: Any,
    *,
    key: Any = None,
    score: Callable[..., Any] = scaled_dot_product,
    parameters: Sequence[Any] = (),
    mask: Any = None,
    bias: Any = None,
    dropout: float = 0.0,
    seed: int | keras.random.SeedGenerator | None = None,
    return_weights: bool = False,
    path: str | None = None,
    return_log_sum_exp: bool = False,
    normalizer: Callable[..., Any] | None = None,
) -> Any:
    """Attention pooling: each query's weighted mean of the values.

        weights = softmax(score(query, key, *parameters) + bias)       over the allowed keys
        output  = weights · value

    A query that may attend to no key gets weights and an output of exactly 0. Hidden keys and
    values reach no output, even if they are NaN or infinite. Under a mask, a query that may see a
    key or value that is not finite becomes NaN.

    There are two paths to the same result. The dense path holds all T × S scores. The streamed path
    holds a few blocks of scores at a time, skips blocks that the mask hides, and computes the
    others again in the backward pass, so memory grows with T + S. Under a causal mask or a window
    it is also faster; without a mask it takes 0.6 to 1.2 times as long, depending on the processor.
    On PyTorch, and on a GPU with JAX, it uses the backend's own kernel where the kernel supports
    mask and score.

    On a CPU `attend` streams by default where T and S are at least 64, T · S is at least 512², and
    B · H · T · S is at least 2²³; the page on long sequences has the limits of other scores and
    devices. Where the weights are returned, it never streams. On TensorFlow, a graph of unknown
    lengths holds both paths, and chooses at run time.

    Args:
        query: float `(B, T, Dq)`, or `(B, H, T, Dq)` with H heads.
        value: float `(B, S, Dv)`, or `(B, G, S, Dv)`; G divides H, and H/G query heads share a head
            of keys and values.
        key: float `(B, S, Dk)` or `(B, G, S, Dk)`. Defaults to `value`.
        score: function of query, key and `parameters` to scores before softmax, `(B, T, S)` or
            `(B, H, T, S)`: one of `tfattn.core.scores`, or your own.
        parameters: the tensors that the score needs besides its operands. On TensorFlow's streamed
            path, a tensor that the score closes over would get no gradient; `attend` raises for
            those that it finds. JAX and PyTorch compute the gradient.
        mask: a mask object of `tfattn.masks`, or a bool array `(T, S)`, `(B, T, S)` or
            `(B, H, T, S)`; True = may attend.
        bias: float, added to the scores, broadcastable to them; or a bias object of
            `tfattn.biases`, which the streamed path evaluates block by block.
        dropout: probability in [0, 1) of dropping a weight; the others are divided by
            1 − `dropout`, so that the expected sum stays 1.
        seed: int or `keras.random.SeedGenerator`, for the dropout.
        return_weights: whether to return the weights too.
        path: "dense" or "streamed" to choose the path. Defaults to None, which leaves the choice
            to the scope `tfattn.attention_path`, or else to the sizes. On TensorFlow, second
            derivatives under `jit_compile=True` need "dense" where a size is unknown.
        return_log_sum_exp: whether to return the log of the sum of the exponentials too, by which
            `merge_attentions` joins calls over parts of the keys.
        normalizer: function of scores and visible pairs to weights that replaces the softmax: one
            of `tfattn.normalizers`, or your own. Dense path only, since it needs all scores of a
            query at once.
    Returns:
        `(B, T, Dv)` or `(B, H, T, Dv)`; on request also, in this order:
        the weights after softmax, before dropout, `(B, T, S)` or `(B, H, T, S)`;
        log Σ exp(score + bias) over the keys that a query may see, `(B, T)` or `(B, H, T)`, in
        float32 or wider; −inf for a query with nothing to attend to.
    Raises:
        ValueError: ranks or lengths do not fit, heads do not divide, a mask is not boolean, `path`
            is not one of the two, or is not available for this call.
    Example:
        >>> query = np.zeros((1, 1, 2), "float32")
        >>> value = np.arange(6.0, dtype="float32").reshape(1, 3, 2)
        >>> print(np.asarray(attend(query=query, value=value, mask=masks.prefix(2))))
        [[[1. 2.]]]

    Source: Nadaraya 1964; Watson 1964; Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """
    if not callable(score):
        _checks.fail("attend", "score", "be a function of query and key", score)
    if not isinstance(parameters, list | tuple):
        _checks.fail("attend", "parameters", "be a sequence of tensors", parameters)
    for tensor in parameters:
        _checks.array("attend", "parameters", tensor, "that `score` takes", booleans=True)
    query, value, key = _operands(query, value, key, score)
    _checks.probability("attend", "dropout", dropout)
    if not isinstance(seed, keras.random.SeedGenerator):
        _checks.seed("attend", seed)
    _checks.flag("attend", "return_weights", return_weights)
    _checks.flag("attend", "return_log_sum_exp", return_log_sum_exp)
    if normalizer is not None and not callable(normalizer):
        expected = "be a function of scores and visible pairs, or None"
        _checks.fail("attend", "normalizer", expected, normalizer)
    shape = (*query.shape[:-1], key.shape[-2])  # of the scores
    mask = softmax.mask_of("attend", shape, mask=mask)
    if bias is not None:
        bias = biases.checked("attend", bias, shape)
    value, key = zero_unseen(mask, query, value, key)
    if normalizer is not None and return_log_sum_exp:
        expected = "be None with `return_log_sum_exp`, which only the softmax has"
        _checks.fail("attend", "normalizer", expected, normalizer)
    call = AttentionCall(
        query=query,
        value=value,
        key=key,
        score=score,
        parameters=parameters,
        mask=mask,
        bias=bias,
        dropout=dropout,
        seed=seed,
        return_weights=return_weights,
        path=path,
        return_log_sum_exp=return_log_sum_exp,
        normalizer=normalizer,
    )
    return dispatch.run(call)


def _operands(
    query: Any, value: Any, key: Any, score: Callable[..., Any]
) -> tuple[Tensor, Tensor, Tensor]:
    letters, key_letters = "(B, T, D) or (B, H, T, D)", "(B, S, D) or (B, G, S, D)"
    query = given_floats("attend", "query", query, letters)
    value = given_floats("attend", "value", value, key_letters)
    key = value if key is None else given_floats("attend", "key", key, key_letters)
    rank = len(_checks.rank("attend", "query", query.shape, (3, 4), letters))
    letters = "(B, S, D)" if rank == 3 else "(B, G, S, D)"
    for name, x in (("key", key), ("value", value)):
        _checks.rank("attend", name, x.shape, (rank,), letters)
        check_batch("attend", name, x.shape, "query", query.shape)
    for name, x in (("query", query), ("key", key)):
        _checks.has_width("attend", name, x.shape)
    if facts_of(score).is_scaled:
        _checks.known_width("attend", "query", query.shape)
    if facts_of(score).is_product:
        _checks.same_size("attend", "key", key.shape[-1], "query", query.shape[-1], "features")
    _checks.same_size("attend", "key", key.shape[-2], "value", value.shape[-2])
    if rank == 4:
        heads, groups = query.shape[1], key.shape[1]
        for name, x in (("query", query), ("key", key)):
            if x.shape[1] is None:
                expected = "have a number of heads that is known before the graph runs"
                _checks.fail("attend", name, expected, tuple(x.shape))
        _checks.divides("attend", "key heads", groups, "query heads", heads)
        if value.shape[1] != groups:
            expected = f"have as many heads as `key`, {groups}"
            _checks.fail("attend", "value", expected, tuple(value.shape))
    return query, value, key
