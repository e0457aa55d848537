"""The edge of a causal mask: the blocks on the diagonal, pooled before the walk forward, and in
strips.

Of such a block half is hidden, and a walk computes all of it. But where a mask goes by distance
these blocks look alike. So the queries of each are cut into strips, and a strip takes the keys that
it sees and no others:

    keys      0  1  2  3
    strip 0   x
    strip 1   x  x
    strip 2   x  x  x
    strip 3   x  x  x  x

A strip alone is a small product; the p-th strips of a run of neighbouring blocks are one batched
product, of at most the numbers of a block. What they give is what the sums of a walk begin with,
and it goes on over blocks that are open, without a mask. The way back has no edge: it gained 0.02
of a layer's time, and its peak of memory grew by a fifth.
"""

from typing import NamedTuple

import tensorflow as tf

from tfattn.core.masks import hooks, ranges
from tfattn.core.paths.blockwise.blocks import NUMBERS_APART, ceil, same
from tfattn.core.paths.blockwise.loops import loop
from tfattn.core.paths.blockwise.reach import Reach

__all__ = ["Edge"]

# Measured on two cores at T 4096, forward: 0.94 to 0.96 of the time without an edge; with 2 or 8
# strips 0.02 more. By Eigen's products, which gain less from large ones, 1.02. Twice the numbers a
# run gave 0.92, and 30 MB in some processes.
_STRIPS = 4
_MOST_NUMBERS = NUMBERS_APART  # scores of the largest strips of a run
_LEAST_IN_A_RUN = 4  # where no more fit, a run's products are much smaller than a block's


class Edge:
    """That of a plain square whose mask cuts through the block of each block of queries on the
    diagonal, and no other.

    There are at least as many keys as queries. So where keys are padded no real query sees padding
    on the diagonal: one that sees a key after it sees some of the block beside as well, and padding
    cuts through that.
    """

    def __init__(self, square, score, visible, opened, strips, run):
        self.square = square
        self.score = score
        self.visible = visible  # bool (t, t), of each block on the diagonal
        self.first, self.end = (tf.constant(ends, tf.int32) for ends in zip(*opened, strict=True))
        self.strips = strips
        self.run = run
        self.runs = ceil(square.query_blocks, run)

    @classmethod
    def of(cls, mask, square, diagonals, score):
        """None where there is none; where strips would see nearly all of a block; or where runs of
        them would be short.

        Args:
            diagonals: those of the mask, or None.
            score: a block form of `block_scores`; one that takes any rectangle, as every
                `heads_apart` one does.
        """
        if diagonals is None or not score.heads_apart or not same(square.heads, square.groups):
            return None
        if square.rows != square.columns or square.queries > square.keys:
            return None
        reaches = [Reach.of(mask, square, 0, i) for i in range(square.query_blocks)]
        if any(reach.cut_through(square) != [i] for i, reach in enumerate(reaches)):
            return None
        strips = _Strip.all(mask, square)
        if sum(strip.numbers for strip in strips) > 0.9 * square.rows**2:
            return None
        numbers = square.chunk * square.heads * max(strip.numbers for strip in strips)
        run = min(_MOST_NUMBERS // max(1, numbers), len(reaches))
        if run < _LEAST_IN_A_RUN:
            return None
        # Spread evenly over the runs; what the last one lacks is computed for nothing.
        run = ceil(len(reaches), ceil(len(reaches), run))
        return cls(
            square,
            score,
            diagonals.blocks[0],
            [reach.open_blocks(square) for reach in reaches],
            strips,
            run,
        )

    def left(self, i):
        """The `Reach` of the i-th queries beside the diagonal."""
        return Reach(self.first[i], self.end[i], 0, self.square.keys, opened=True)

    def begun(self, way, queries, keys, values):
        """What `Sums` of `pooling` have of each block of queries, block first, after the keys on
        the diagonal.

        Args:
            way: these sums.
            queries, keys, values: blocks `(blocks, c, G, t, ...)`.
        """
        operands = [self._filled(x[: self.square.query_blocks]) for x in (queries, keys, values)]

        def over_runs(r, *arrays):
            found = self._pooled(way, *[x[r] for x in operands])
            return [array.write(r, x) for array, x in zip(arrays, found, strict=True)]

        shapes = [[self.run, *queries.shape[1:-1], width] for width in (values.shape[-1], 1)]
        arrays = [tf.TensorArray(queries.dtype, self.runs, element_shape=shape) for shape in shapes]
        # (runs, r, c, G, t, ...)
        found = [array.stack() for array in loop(0, self.runs, over_runs, *arrays)]
        return [tf.reshape(x, [self.runs * self.run, *x.shape[2:]]) for x in found]

    def _filled(self, blocks):
        """Runs `(runs, r, c, G, t, X)`, with copies of the last block, as many as the last run
        lacks.
        """
        lacks = self.runs * self.run - self.square.query_blocks
        blocks = tf.concat([blocks, *[blocks[-1:]] * lacks], 0) if lacks else blocks
        return tf.reshape(blocks, [self.runs, self.run, *blocks.shape[1:]])

    def _pooled(self, way, queries, keys, values):
        """That of a run, `(r, c, G, t, ...)`."""
        found = []
        for first, end, low, high in self.strips:
            # one strip after the other is in memory
            with tf.control_dependencies(found[-1] if found else []):
                query, key, value = (
                    queries[..., first:end, :],
                    keys[..., low:high, :],
                    values[..., low:high, :],
                )
                # (r, c, G, t of a strip, s of a strip)
                scores = self.score.scores(self.square, query, key, ())
                hidden = tf.constant(way.hidden(scores.dtype), scores.dtype)
                scores = tf.where(self.visible[first:end, low:high], scores, hidden)
                found.append(way.more(*way.start(query, value), scores, value, None))
        return [tf.concat(parts, -2) for parts in zip(*found, strict=True)]


class _Strip(NamedTuple):
    """Queries of a block on the diagonal, and its keys that one of them may see: outside of those
    none does.
    """

    first: int
    end: int
    low: int
    high: int

    @property
    def numbers(self):
        return (self.end - self.first) * (self.high - self.low)

    @classmethod
    def all(cls, mask, square):
        """Those of a block. Asked of the first, since by distance all are alike."""
        side, count = square.rows, min(_STRIPS, square.rows)
        edges = [side * p // count for p in range(count + 1)]
        strips = []
        for first, end in zip(edges, edges[1:], strict=False):
            grid = square.query_grid(0, 0)._replace(
                query_start=first, queries=end - first, aligned=False
            )
            low, high = ranges.overlap(hooks.key_bounds(mask, grid), (0, side))
            strips.append(cls(first, end, low, max(low, high)))
        return strips
