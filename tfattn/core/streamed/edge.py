"""The edge of a mask by distance: the blocks that it cuts through, taken before the walk and in strips.

Of a block on the diagonal of a causal mask half is hidden, and a walk computes all of it. But where a mask goes by distance,
these blocks look alike. So the queries of each are cut into strips, and a strip takes the keys that it sees and no others,
here in four strips:

    keys      0  1  2  3
    strip 0   x
    strip 1   x  x
    strip 2   x  x  x
    strip 3   x  x  x  x

A strip alone is a small product; the p-th strips of a run of neighbouring blocks of queries are one batched product, of at
most twice the numbers of a block. What they give is what the walk begins with, and it goes on over blocks that are open,
without a mask.
"""

from typing import NamedTuple

import tensorflow as tf

from tfattn.core import masks, ranges
from tfattn.core.streamed.blocks import NUMBERS_APART, ceil, moved
from tfattn.core.streamed.loops import array_of, loop
from tfattn.core.streamed.reach import Reach

__all__ = ["Edge", "NoEdge"]

_STRIPS = 4
_MOST_NUMBERS = NUMBERS_APART  # scores of a run of strips
# Of fewer a run is a smaller product than a block: on two cores runs of one and two blocks took 0.9 to 1.2 times as long as
# the walk without an edge, and runs of eight 0.9 to 1.0 times.
_LEAST_IN_A_RUN, _MOST_IN_A_RUN = 4, 64
_INF = float("inf")


class NoEdge:
    """What the walks ask of an edge, where there is none: they begin with nothing, and go over all that the mask leaves."""

    strips = ()

    def __init__(self, layout):
        self.layout = layout
        self.square = layout.square

    def left(self, m, i):
        """The `Reach` of the i-th queries of step m: the blocks to walk over."""
        return Reach.of(self.layout.mask, self.square, *self.layout.at(m, i))

    def number(self, m, i, j):
        """That of a block, of which dropout draws; the strips of the i-th queries have those after their last block's."""
        return (m * self.layout.query_blocks + i) * (self.square.key_blocks + len(self.strips)) + j

    def start(self, way, m, i, queries, keys, values):
        """What `way` of `pooling` begins the i-th queries of step m with."""
        return way.start(queries[i], values)

    def starts(self, way, m, queries, keys, values):
        """That of each block of queries, as a function of i. Computed here and now where it is more than nothing."""
        return lambda i: self.start(way, m, i, queries, keys, values)

    def pulled(self, pulls, m, queries, keys, values, *of_queries):
        """What the gradients of a step begin with: of queries as a function of i, of keys and values as `sums` of a layout.

        Args:
            pulls: that of `pooling`.
            of_queries: what its `rows` takes besides queries, for each block of them.
        """
        return lambda i: tf.zeros_like(queries[i]), self.layout.sums(keys), self.layout.sums(values)


class Edge(NoEdge):
    """That of the plain square's blocks, for scores of any rectangle, as every `heads_apart` one has.

    Of masks that cut through one diagonal of blocks, as the causal one does. A window cuts through two: both in strips took
    0.91 of the walk's time by oneDNN's products and 1.16 by Eigen's (1,024 keys on each side, of 8,192).
    """

    def __init__(self, layout, diagonals, score, strips, run):
        super().__init__(layout)
        self.score = score
        self.strips, self.run = strips, run
        self.runs = ceil(layout.query_blocks, run)
        self.first, self.end = (tf.constant(ends, tf.int32) for ends in zip(*diagonals.left, strict=True))
        square, repeats = self.square, self.square.heads // self.square.groups
        self.shift = _shift(diagonals, square)
        self.visible = [
            tf.tile(diagonals.blocks[0, x.first : x.end, x.low : x.high], [repeats, 1]) for x in self.strips
        ]
        # Keys beyond the sequence: of the padding, and of blocks where the diagonal has left the square.
        last = square.query_blocks - 1 + self.shift
        self.beyond = square.padded or self.shift < 0 or last >= square.key_blocks

    @classmethod
    def of(cls, layout, diagonals, score, bias):
        """None where a block has another side, or a bias; where blocks that are cut through, by the mask or by the end of
        the keys, lie on more than one diagonal; where strips of them would see all the same; or where a run is short.
        """
        square = layout.square
        if diagonals is None or bias is not None or not score.heads_apart or square.rows != square.columns:
            return None
        sizes = (square.chunk, square.heads, square.groups)
        if len(diagonals.offsets) > 1 or not all(isinstance(size, int) for size in sizes):
            return None
        shift = _shift(diagonals, square)
        # All of the diagonal is taken: no rule may call one of its blocks open.
        if any(first <= i + shift < end for i, (first, end) in enumerate(diagonals.left)):
            return None
        strips = _Strip.all(layout.mask, square, shift)
        if strips is None:
            return None
        most = _MOST_NUMBERS // (square.chunk * square.heads * max(strip.queries for strip in strips) * square.columns)
        run = max(1, min(_MOST_IN_A_RUN, most, square.query_blocks))
        if run < _LEAST_IN_A_RUN:
            return None
        # Spread evenly over the runs; what the last one lacks is computed for nothing.
        return cls(layout, diagonals, score, strips, ceil(square.query_blocks, ceil(square.query_blocks, run)))

    def left(self, m, i):
        return Reach(self.first[i], self.end[i], 0, self.square.keys, opened=True)

    def start(self, way, m, i, queries, keys, values):
        return [x[0] for x in self._pooled(way, m, i, 1, queries, self._along(keys), self._along(values))]

    def starts(self, way, m, queries, keys, values):
        queries, keys, values = self._filled(queries), self._along(keys), self._along(values)

        def over_runs(r, *arrays):
            found = self._pooled(way, m, r * self.run, self.run, queries, keys, values)
            return [array.write(r, x) for array, x in zip(arrays, found, strict=True)]

        arrays = [self._array(x) for x in way.start(queries, values)]
        states = [self._whole(array) for array in loop(0, self.runs, over_runs, *arrays)]
        return lambda i: [x[i] for x in states]

    def _pooled(self, way, m, i, run, queries, keys, values):
        """Of so many blocks of queries from the i-th on: what `way` has of them, after all strips."""
        queries, keys, values = (_taken(x, i, run) for x in (queries, keys, values))  # (r, c, G, R or s, ...)
        states = []
        for p, strip in enumerate(self.strips):
            with tf.control_dependencies(states[-1] if states else []):  # one strip after the other is in memory
                query, key, value = self._rows(queries, strip), strip.seen(keys), strip.seen(values)
                scores = self.score.scores(self.square, query, key, ())
                scores = self._hide(scores, way.hidden(scores.dtype), p, i)
                states.append(way.more(*way.start(query, value), scores, value, self._numbers(m, i, run, p)))
        return [self._joined(parts) for parts in zip(*states, strict=True)]

    def pulled(self, pulls, m, queries, keys, values, *of_queries):
        queries, *of_queries = map(self._filled, (queries, *of_queries))
        keys, values = self._along(keys), self._along(values)

        def over_runs(r, *arrays):
            found = self._pulled(pulls, m, r * self.run, queries, keys, values, of_queries)
            return [array.write(r, x) for array, x in zip(arrays, found, strict=True)]

        arrays = loop(0, self.runs, over_runs, *map(self._array, (queries, keys, values)))
        of_query, *of_tokens = map(self._whole, arrays)
        sums = [array_of(moved(x, self.shift, self.square.key_blocks)) for x in of_tokens]
        return lambda i: of_query[i], *sums

    def _pulled(self, pulls, m, i, queries, keys, values, of_queries):
        """Gradients of a run of blocks of queries, of their keys along the diagonal, and of these keys' values."""
        run = self.run
        queries, keys, values, *of_queries = (_taken(x, i, run) for x in (queries, keys, values, *of_queries))
        found, of_keys = [], [tf.zeros_like(keys), tf.zeros_like(values)]
        shifted_keys, values = self.score.prepared_keys(keys), pulls.values(values)
        for p, strip in enumerate(self.strips):
            with tf.control_dependencies([*found[-1:], *of_keys]):  # one strip after the other is in memory
                query, *of_rows = (self._rows(x, strip) for x in (queries, *of_queries))
                shifted, *of_rows = pulls.rows(self.score, query, *of_rows)
                scores = self.score.shifted(self.square, shifted, strip.seen(shifted_keys), ())
                weights = tf.exp(self._hide(scores, -_INF, p, i))
                of_scores, of_value = pulls.pull(*of_rows, weights, strip.seen(values), self._numbers(m, i, run, p))
                of_query, of_key, _ = self.score.pull(self.square, query, strip.seen(keys), (), of_scores)
                around = [[0, 0]] * 3 + [[strip.low, self.square.columns - strip.high], [0, 0]]
                of_keys = [x + tf.pad(more, around) for x, more in zip(of_keys, (of_key, of_value), strict=True)]
                found.append(of_query)
        return self._joined(found), *of_keys

    def _filled(self, queries):
        """With copies of the last block, as many as the last run lacks: of zeros a division would make NaN."""
        lacks = self.runs * self.run - self.layout.query_blocks
        return tf.concat([queries, *[queries[-1:]] * lacks], 0) if lacks else queries

    def _along(self, keys):
        """Blocks of keys in the order of the queries that see them; zeros beyond the first and the last."""
        return moved(keys, -self.shift, self.runs * self.run)

    def _hide(self, scores, low, p, i):
        """`low` for what the p-th strips of a run from the i-th queries on may not see, of scores `(r, c, G, R, s)`."""
        strip, visible = self.strips[p], self.visible[p]
        if self.beyond:
            blocks = tf.range(scores.shape[0]) + i + self.shift
            keys = blocks[:, None] * self.square.columns + tf.range(strip.low, strip.high)  # (r, s)
            inside = (keys >= 0) & (keys < self.square.keys)
            visible = visible & inside[:, None, None, None]  # (r, 1, 1, R, s)
        return tf.where(visible, scores, tf.constant(low, scores.dtype))

    def _numbers(self, m, i, run, p):
        return [self.number(m, i + k, self.square.key_blocks + p) for k in range(run)]

    def _rows(self, x, strip):
        """A strip's part of queries `(r, c, G, H/G·t, X)`: heads that share a key head lie below each other."""
        square = self.square
        apart = [*x.shape[:3], square.heads // square.groups]
        x = tf.reshape(x, [*apart, square.rows, x.shape[-1]])[..., strip.first : strip.end, :]
        return tf.reshape(x, [*apart[:3], apart[3] * strip.queries, x.shape[-1]])

    def _joined(self, parts):
        """What the strips have found, as `(r, c, G, H/G·t, X)` again."""
        repeats, (*around, _, width) = self.square.heads // self.square.groups, parts[0].shape
        apart = zip(self.strips, parts, strict=True)
        x = tf.concat([tf.reshape(x, [*around, repeats, strip.queries, width]) for strip, x in apart], -2)
        return tf.reshape(x, [*around, repeats * self.square.rows, width])

    def _array(self, x):
        """For runs of blocks like those of x."""
        return tf.TensorArray(x.dtype, self.runs, element_shape=[self.run, *x.shape[1:]])

    def _whole(self, array):
        """Runs of blocks as blocks, one for each block of queries."""
        x = array.stack()
        return tf.reshape(x, [self.runs * self.run, *x.shape[2:]])[: self.layout.query_blocks]


class _Strip(NamedTuple):
    """Queries of a block, and the keys of the diagonal's block that one of them may see: outside of those none does."""

    first: int
    end: int
    low: int
    high: int

    @property
    def queries(self):
        return self.end - self.first

    def seen(self, keys):
        """The strip's part of blocks of keys `(r, c, G, s, X)`."""
        return keys[..., self.low : self.high, :]

    @classmethod
    def all(cls, mask, square, shift):
        """Those of a block on that diagonal; None where the mask does not tell by ints, or where they
        see nearly all of it.
        """
        side, count = square.rows, min(_STRIPS, square.rows)
        edges = [side * p // count for p in range(count + 1)]
        strips = []
        for first, end in zip(edges, edges[1:], strict=False):
            bounds = _seen(mask, square, shift, first, end)
            if bounds is None:
                return None
            strips.append(cls(first, end, *bounds))
        numbers = sum(strip.queries * (strip.high - strip.low) for strip in strips)
        return strips if 8 * numbers <= 7 * side**2 else None


def _seen(mask, square, shift, first, end):
    """Which keys of the blocks on a diagonal these queries of theirs may see, `(low, high)` of each block; None if unknown."""
    side, found = square.rows, []
    for i in range(max(0, -shift), min(square.query_blocks, square.key_blocks - shift)):
        start, stop = i * side + first, min(i * side + end, square.queries)
        if start < stop:
            grid = masks.Grid(square.queries, square.keys, start, 0, stop - start, square.keys)
            bounds = ranges.ends(mask.key_bounds(grid))
            if not all(isinstance(bound, int) for bound in bounds):
                return None
            begin = (i + shift) * side
            low, high = max(bounds[0] - begin, 0), min(bounds[1] - begin, side)
            if low < high:
                found.append((low, high))
    lows, highs = zip(*found, strict=True) if found else ([0], [1])  # one key, hidden, where nothing is to be seen
    return min(lows), max(highs)


def _shift(diagonals, square):
    """How many blocks further on than the queries the keys of the diagonal are."""
    return diagonals.offsets[0] // square.columns


def _taken(blocks, i, run):
    return tf.slice(blocks, [i, *[0] * (len(blocks.shape) - 1)], [run, *blocks.shape[1:]])
