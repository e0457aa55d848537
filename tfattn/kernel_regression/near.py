"""The keys that queries see: windows on a line, balls in several columns.

All other keys are outside of the kernel's support, or together weigh less than a float64 shows.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.points import Index

Array = np.ndarray
Place = tuple[Index, Index]  # some queries, and every key that one of them sees


def places(
    kernel: Kernel,
    query: Array,
    key: Array,
    log_ratio: float,
    left_out: Array | None,
    is_line: bool,
) -> Iterator[Place]:
    """All pairs that count, of queries and keys in bandwidths, sorted on a line. `log_ratio` is the
    difference of log K that makes a weight negligible; `left_out` `(M,)`, each query's own point.
    """
    if is_line:
        ends = _windows(kernel, query[:, 0], key[:, 0], log_ratio, left_out)
        return _slices_of_windows(*ends)
    share = _share_in_balls(kernel, query, key, log_ratio)
    if share * len(key) + tuned.TREE_KEYS >= len(key):
        return _all_pairs(query, key)
    from scipy.spatial import cKDTree  # lazily, since one column needs none

    tree = cKDTree(key)
    # With the point itself, which is left out, the nearest other is the second.
    nearest = tree.query(query, k=[1 if left_out is None else 2])[0][:, 0]
    return _balls(query, tree, _reach(kernel, nearest, log_ratio))


def _all_pairs(query: Array, key: Array) -> Iterator[Place]:
    step = max(1, tuned.TILE_PAIRS // len(key))
    for start in range(0, len(query), step):
        yield slice(start, min(start + step, len(query))), slice(0, len(key))


def _windows(
    kernel: Kernel, query: Array, key: Array, log_ratio: float, left_out: Array | None
) -> tuple[Array, Array]:
    """The window of each query on a line, both sorted: index of its first key and after its last.
    Neither decreases.
    """
    distance = _nearest_distances(query, key, left_out)
    reach = _reach(kernel, np.where(np.isfinite(distance), distance, 0.0), log_ratio)
    reach += 1e-12 * np.abs(query)
    first = np.searchsorted(key, query - reach, side="left")
    last = np.searchsorted(key, query + reach, side="right")
    if left_out is not None:  # the window includes the point itself, which is then excluded
        first, last = np.minimum(first, left_out), np.maximum(last, left_out + 1)
    return np.minimum.accumulate(first[::-1])[::-1], np.maximum.accumulate(last)


def _nearest_distances(query: Array, key: Array, left_out: Array | None) -> Array:
    """Distances to the nearest key on a line, which is not the point that is left out."""
    padded = np.concatenate([[-np.inf], key, [np.inf]])
    before = np.searchsorted(key, query) if left_out is None else left_out
    after = before + (1 if left_out is None else 2)
    return np.minimum(query - padded[before], padded[after] - query)


def _reach(kernel: Kernel, nearest: Array, log_ratio: float) -> Array:
    """How far each query sees: at least to its nearest key; rounding excludes none at the edge."""
    if np.isinf(kernel.support):
        seen = np.inf if kernel.reach is None else kernel.reach(nearest, log_ratio)
    else:
        seen = kernel.support
    return np.maximum(seen, nearest) * (1.0 + 1e-9)


def _slices_of_windows(first: Array, last: Array) -> Iterator[Place]:
    """Slices of queries that share most of their windows, with all keys in these."""
    start = 0
    while start < len(first):
        width = max(int(last[start] - first[start]), 1)
        farthest = first[start] + max(width // 4, tuned.EXTRA_KEYS)
        stop = int(np.searchsorted(first, farthest, side="right"))
        most = start + max(1, tuned.TILE_PAIRS // width)
        stop = min(max(stop, start + 1), most, len(first))
        yield slice(start, stop), slice(int(first[start]), int(last[stop - 1]))
        start = stop


def _share_in_balls(kernel: Kernel, query: Array, key: Array, log_ratio: float) -> float:
    """About which share of all pairs `_balls` has; 1 where categories part (`log_ratio` is inf)."""
    if np.isinf(log_ratio) or not key.shape[1] or not np.isfinite(query).all():
        return 1.0  # a query that overflows is in no ball
    reach = _reach(kernel, np.zeros(()), log_ratio)
    extent = np.maximum(np.ptp(key, axis=0), np.finfo("float64").tiny)
    block = (tuned.BLOCK / max(len(query), 1)) ** (1.0 / key.shape[1])
    return float(np.prod(np.minimum(1.0, np.minimum(2.0 * reach, extent) / extent + block)))


def _balls(query: Array, tree: Any, reach: Array) -> Iterator[Place]:
    """Blocks of queries that lie together, with the keys in a ball around what these see."""
    order = type(tree)(query, balanced_tree=False, compact_nodes=False).indices  # leaf by leaf
    for start in range(0, len(order), tuned.BLOCK):
        rows = order[start : start + tuned.BLOCK]
        block = query[rows]
        center = 0.5 * (block.min(axis=0) + block.max(axis=0))
        radius = np.max(np.sqrt(np.square(block - center).sum(axis=1)) + reach[rows])
        rounding = 1e-12 * np.abs(center).max()
        keys = np.sort(tree.query_ball_point(center, radius + rounding))
        step = max(tuned.TILE_PAIRS // max(len(keys), 1), 16)
        for first in range(0, len(rows), step):
            yield rows[first : first + step], keys
