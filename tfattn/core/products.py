"""Batched matrix products, also where several query heads share one key head: their rows fold into
one product (grouped-query attention, Ainslie et al. 2023, arXiv:2305.13245).
"""

import numpy as np
from keras import ops

from tfattn._types import Tensor


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """left `(..., T, X)` · right `(..., X, Y)`; of H heads and G, which divides H, head h of `left`
    is multiplied by head h // (H // G) of `right`.
    """
    heads, groups = left.shape[1], right.shape[1]
    if heads == groups or len(left.shape) != 4:
        return ops.matmul(left, right)
    batch, _, rows, width = ops.shape(left)
    folded = ops.reshape(left, (batch, groups, heads // groups * rows, width))  # (B, G, H/G·T, X)
    product = ops.matmul(folded, right)  # (B, G, H/G·T, Y)
    return ops.reshape(product, (batch, heads, rows, ops.shape(right)[-1]))  # (B, H, T, Y)


def repeat_heads(tensor: Tensor, like: Tensor) -> Tensor:
    """Repeats the heads of `(B, G, S, D)` until there are as many as `like` has."""
    heads, groups = like.shape[1], tensor.shape[1]
    if heads == groups or len(tensor.shape) != 4:
        return tensor
    # A gather: `ops.repeat` would go through a tensor with one more axis.
    return ops.take(tensor, np.repeat(np.arange(groups), heads // groups), axis=1)


def matmul_by_head(tensor: Tensor, matrices: Tensor) -> Tensor:
    """Tokens `(B, H, T, D)` times the matrix of their head, of `(H, D, N)`: `(B, H, T, N)`."""
    # TensorFlow's oneDNN reads beyond the end of a matrix that it broadcasts over a batch beside an
    # axis of 1 (tensorflow#117700).
    if matrices.shape[0] == 1:
        return matmul_shared(tensor, matrices[0])
    return ops.matmul(tensor, matrices)


def matmul_shared(tensor: Tensor, matrix: Tensor) -> Tensor:
    """Every token of `(..., D)` times one `(D, N)` matrix, as one flat product."""
    # The gradient of TensorFlow's batched product holds a copy of the matrix for each row.
    flat = ops.reshape(tensor, (-1, tensor.shape[-1]))  # (B·T, D)
    product = ops.matmul(flat, matrix)  # (B·T, N)
    return ops.reshape(product, (*ops.shape(tensor)[:-1], matrix.shape[-1]))  # (..., N)
