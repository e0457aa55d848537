"""The engine's one door: scores, mask, softmax, pooling."""

import functools
import math

import keras
from keras import ops

from tfattn import _checks
from tfattn.core import biases, pairs, products, softmax
from tfattn.core.floats import floating
from tfattn.core.masks import hooks
from tfattn.core.scores import additive, dot_product, scaled_dot_product

__all__ = ["attend"]


def attend(
    query,
    value,
    key=None,
    score=scaled_dot_product,
    parameters=(),
    mask=None,
    bias=None,
    dropout=0.0,
    seed=None,
    return_weights=False,
    path=None,
):
    """Attention pooling: each query's weighted mean of the values.

        weights = softmax over keys of score(query, key, *parameters) + bias, where the mask lets the query look
        output  = weights · values

    A query with nothing to attend to gets weights and an output of exactly 0. What lies under the
    mask (NaN and infinities too) reaches no output; under a mask, a query that may see a key or
    value that is not finite becomes NaN.

    There are two paths to the same result. The dense one holds all T × S scores. The streamed one
    (TensorFlow) holds two blocks of them at a time, skips the blocks that the mask hides, and
    computes them again in the backward pass: memory grows with T + S. Left to itself, `attend`
    streams where it is the quicker one too (`_long`): with at least 64 queries and keys, where T ·
    S is 512² or more and the scores of all rows and heads are 2²³ numbers or more, 32 MB. Of a
    score other than a dot product each pair counts as many times as the operands are wide, and 2²⁴
    numbers are the least. Never where the weights are wanted. A graph whose lengths are not known
    yet holds both paths, and chooses when it runs.

    Args:
        query: `(B, T, Dq)`, or `(B, H, T, Dq)` with heads.
        value: `(B, S, Dv)`, or `(B, G, S, Dv)`; G divides H, and a head of the values serves H/G
            heads of queries.
        key: `(B, S, Dk)` or `(B, G, S, Dk)`; `value` where it is not given.
        score: function of query, key and `parameters` to scores before softmax, `(B, T, S)` or
            `(B, H, T, S)`: one of `tfattn.core.scores`, or your own.
        parameters: the tensors that the score needs besides its operands. A tensor that the score
            closes over instead would get no gradient when streamed; one that is seen there is
            refused.
        mask: a mask object of `tfattn.masks`, or a bool array `(T, S)`, `(B, T, S)` or
            `(B, H, T, S)`; True = may attend.
        bias: float, added to the scores, broadcastable to them (such as relative positions); or a
            bias object of `tfattn.biases`.
        dropout: probability in [0, 1) of dropping a weight; the others grow so that the expected
            sum stays 1.
        seed: int or `keras.random.SeedGenerator`, for the dropout.
        return_weights: whether to return the weights too.
        path: "dense" or "streamed" to choose the path; None leaves the choice to the sizes.
    Returns:
        `(B, T, Dv)` or `(B, H, T, Dv)`; on request also the weights after softmax, before dropout,
        `(B, T, S)` or `(B, H, T, S)`.
    Raises:
        ValueError: ranks or lengths do not fit, heads do not divide, a mask is not boolean, `path`
            is not one of the two, or cannot be had here.
    Example:
        >>> query, value = np.zeros((1, 1, 2), "float32"), np.arange(6.0, dtype="float32").reshape(1, 3, 2)
        >>> print(attend(query, value, mask=masks.prefix(2)).numpy())
        [[[1. 2.]]]

    Source: Nadaraya 1964; Watson 1964; Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """
    query, value, key = _operands(query, value, value if key is None else key)
    _checks.probability("attend", "dropout", dropout)
    shape = (*query.shape[:-1], key.shape[-2])  # of the scores
    rule = softmax.rule_of("attend", shape, mask=mask)
    if isinstance(bias, biases.Bias):
        bias.check("attend", "bias", shape)
        bias = bias.dense(ops.shape(query)[-2], ops.shape(key)[-2])
    if bias is not None:
        bias = pairs.checked_bias("attend", bias, shape)
    seen = None if rule is None else hooks.seen_keys(rule, ops.shape(query)[-2], ops.shape(key)[-2])
    if seen is not None:
        # (B, S, 1) or (B, 1, S, 1)
        seen = seen[:, None, :, None] if len(key.shape) == 4 else seen[..., None]
    streams = _streams(path, query, key, score, return_weights)
    others = (score, parameters, rule, bias)
    if streams is False:
        drop = functools.partial(keras.random.dropout, rate=dropout, seed=seed) if dropout else None
        return _dense(query, value, key, seen, *others, drop, return_weights)
    from tfattn.core.paths import blockwise as streamed

    def by_blocks(**options):
        cleaned = (value, key) if seen is None else (_only(seen, value), _only(seen, key))
        return streamed.attend(query, *cleaned, *others, dropout, **options)

    # Drawn once, before the choice: a generator that each branch moved on would be left with the
    # state of one of them.
    dropout = streamed.drawn(dropout, seed)
    if streams is True:
        return by_blocks()
    drop = dropout and dropout.drop
    return streamed.choose(
        streams,
        lambda: _dense(query, value, key, seen, *others, drop),
        lambda: by_blocks(shared=True),
    )


def _dense(query, value, key, seen, score, parameters, rule, bias, drop=None, return_weights=False):
    """All scores at once; `drop` is the function that drops weights, where some are to be dropped."""
    rank, visible = len(query.shape), None
    if rule is not None:
        visible = pairs.with_heads(rule.dense(ops.shape(query)[-2], ops.shape(key)[-2]), rank)
        query, key, value = _shield(query, key, value, seen, visible)
    scores = score(query, key, *parameters)  # (..., T, S)
    # float32 or wider until the weights are there: a half-precision score has too few digits for an
    # exponent.
    scores = ops.cast(scores, keras.backend.result_type(scores.dtype, "float32"))
    if bias is not None:
        scores = scores + pairs.with_heads(ops.cast(bias, scores.dtype), rank)
    if bias is not None or score not in _ALWAYS_FINITE:
        visible = softmax.not_hidden(scores, visible)
    weights = ops.cast(softmax.normalise(scores, visible), value.dtype)
    kept = drop(weights) if drop else weights
    output = products.matmul(kept, value)  # (..., T, Dv)
    return (output, weights) if return_weights else output


def _operands(query, value, key):
    query, value, key = floating(query), floating(value), floating(key)
    rank = len(_checks.rank("attend", "query", query.shape, (3, 4), "(B, T, D) or (B, H, T, D)"))
    for name, x in (("key", key), ("value", value)):
        _checks.rank("attend", name, x.shape, (rank,), "(B, S, D)" if rank == 3 else "(B, G, S, D)")
    _checks.same_size("attend", "key", key.shape[-2], "value", value.shape[-2])
    if rank == 4:
        heads, groups = query.shape[1], key.shape[1]
        for name, x in (("query", query), ("key", key)):
            if x.shape[1] is None:
                _checks.fail(
                    "attend",
                    name,
                    "have a number of heads that is known before the graph runs",
                    tuple(x.shape),
                )
        _checks.divides("attend", "key heads", groups, "query heads", heads)
        if value.shape[1] != groups:
            _checks.fail(
                "attend", "value", f"have as many heads as `key`, {groups}", tuple(value.shape)
            )
    return query, value, key


def _streams(path, query, key, score, return_weights):
    """Whether this call takes the streamed path: True, False, or a bool tensor where only the run
    can tell.
    """
    if path not in (None, "dense", "streamed"):
        _checks.fail("attend", "path", "be None, 'dense' or 'streamed'", path)
    able = keras.backend.backend() == "tensorflow" and not return_weights
    if path == "streamed" and not able:
        _checks.fail(
            "attend",
            "path",
            "be 'dense' with another backend than TensorFlow, or for the weights",
            path,
        )
    if path is not None or not able or isinstance(query, keras.KerasTensor):
        return path == "streamed" and not isinstance(query, keras.KerasTensor)
    return _long(query, key, 1 if score in _PRODUCTS else ops.shape(query)[-1])


_PRODUCTS = (scaled_dot_product, dot_product)
# Scores that are never −inf for finite operands; a kernel of compact support, a bias or a score of
# one's own may be.
_ALWAYS_FINITE = (*_PRODUCTS, additive)


def _long(query, key, width):
    """Whether streaming pays, measured on two cores: below, a block costs more to fetch than the
    whole square to hold.

    Args:
        query, key: `(B, T, D)` or `(B, H, T, D)`, with S for T.   width: numbers that the score
            holds for each pair.
    Returns:
        bool, or where T or S is known only when the graph runs, a bool tensor.
    """
    batch, *heads, queries, _ = ops.shape(query)
    lengths = (queries, ops.shape(key)[-2])
    known = [length for length in lengths if isinstance(length, int)]
    if known and min(known) < _FEW:
        return False
    # A batch of unknown size is seldom a single row.
    rows = batch if len(known) < 2 or isinstance(batch, int) else 16
    # Floats, since the product of tensors of sizes would overflow 32 bits where it matters most.
    pairs = _product(*lengths, width)
    # A compiled score must first earn its compilation.
    least = 2**23 if width == 1 else 2**24
    return (pairs >= 2**18) & (_product(pairs, rows, *heads) >= least)


_FEW = 64  # tokens on one side, for which the square is no larger than the operands


def _product(*sizes):
    return math.prod(
        size if isinstance(size, (int, float)) else ops.cast(size, "float32") for size in sizes
    )


def _only(kept, tokens):
    """Zeros for the tokens that are not kept."""
    return ops.where(kept, tokens, 0.0)


def _shield(query, key, value, seen, visible):
    """Keeps keys and values that are not finite away from the queries that may not see them.

    A weight of 0 does not hide a NaN from a matrix product, nor from the product's gradient: 0 ·
    NaN is NaN. So such tokens become zeros, and the queries that may see one become NaN, as they
    would without a mask. Tokens that no query may see become zeros too: even a finite number may
    overflow in a gradient.

    Args:
        seen: bool `(B, S, 1)` or `(B, 1, S, 1)`, what some query may see; or None.
        visible: bool, broadcastable to the scores, of rank 2 or theirs.
    """
    # (B, S, 1) or (B, G, S, 1)
    finite = products.finite_tokens(key) & products.finite_tokens(value)
    kept = finite if seen is None else finite & seen
    broken = ops.logical_not(finite)[..., 0]  # (B, S) or (B, G, S)
    if len(broken.shape) == 3:
        broken = ops.any(broken, axis=1, keepdims=True)  # (B, 1, S)
    # (..., T or 1, 1)
    sees = ops.any(ops.logical_and(visible, broken[..., None, :]), axis=-1, keepdims=True)
    return ops.where(sees, float("nan"), query), _only(kept, key), _only(kept, value)
