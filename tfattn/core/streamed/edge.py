"""The edge of a mask by distance: the blocks that it cuts through, taken before the walk and in strips.

Of a block on the diagonal of a causal mask half is hidden, and a walk computes all of it. But where a mask goes by distance,
these blocks look alike. So the queries of each are cut into strips, and a strip takes the keys that it sees and no others,
here in four strips:

    keys      0  1  2  3
    strip 0   x
    strip 1   x  x
    strip 2   x  x  x
    strip 3   x  x  x  x

A strip alone is a small product; the p-th strips of a run of neighbouring blocks of queries are one batched product, of as
many numbers as a block. What they give is what the walk begins with, and it goes on over blocks that are open, without a mask.
"""

from typing import NamedTuple

import tensorflow as tf

from tfattn.core import masks, ranges
from tfattn.core.streamed.blocks import NUMBERS_APART, ceil, moved
from tfattn.core.streamed.loops import array_of, loop
from tfattn.core.streamed.reach import Reach

__all__ = ["Edge", "NoEdge"]

_STRIPS = 4
_MOST_NUMBERS = 2 * NUMBERS_APART  # scores of a run of strips
# Of fewer a run is a smaller product than a block: on two cores runs of one and two blocks took 0.9 to 1.2 times as long as
# the walk without an edge, and runs of eight 0.9 to 1.0 times.
_LEAST_IN_A_RUN, _MOST_IN_A_RUN = 4, 64
# The two of a window of 1,024 at 8,192 tokens took 0.91 (both ways 0.96) times as long as without an edge by oneDNN's products,
# but 1.16 (1.15) by Eigen's: keys are copied for each diagonal, and what leaves the square is hidden piece by piece.
_MOST_DIAGONALS = 1
_INF = float("inf")


class NoEdge:
    """What the walks ask of an edge, where there is none: they begin with nothing, and go over all that the mask leaves."""

    pieces = ()

    def __init__(self, layout):
        self.layout = layout
        self.square = layout.square

    def left(self, m, i):
        """The `Reach` of the i-th queries of step m: the blocks to walk over."""
        return Reach.of(self.layout.mask, self.square, *self.layout.at(m, i))

    def number(self, m, i, j):
        """That of a block, of which dropout draws; the pieces of the i-th queries have those after their last block's."""
        return (m * self.layout.query_blocks + i) * (self.square.key_blocks + len(self.pieces)) + j

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
    """That of the plain square's blocks, for scores of any rectangle, as every `heads_apart` one has."""

    def __init__(self, layout, diagonals, score, strips, run):
        super().__init__(layout)
        self.score = score
        self.strips, self.run = strips, run
        self.runs = ceil(layout.query_blocks, run)
        self.pieces = [piece for strip in strips for piece in strip.pieces]
        self.first, self.end = (tf.constant(ends, tf.int32) for ends in zip(*diagonals.left, strict=True))
        square, repeats = self.square, self.square.heads // self.square.groups
        self.shifts = _shifts(diagonals, square)
        self.visible = [
            tf.tile(diagonals.blocks[x.diagonal, x.first : x.end, x.low : x.high], [repeats, 1]) for x in self.pieces
        ]
        # Keys beyond the sequence: of the padding, and of blocks where a diagonal has left the square.
        last = square.query_blocks - 1
        self.beyond = square.padded or any(shift < 0 or last + shift >= square.key_blocks for shift in self.shifts)

    @classmethod
    def of(cls, layout, diagonals, score, bias):
        """None where a block has another side, or a bias; where blocks that are cut through, by the mask or by the end of
        the keys, lie on more than `_MOST_DIAGONALS`; where strips of them would see all the same; or where a run is short.
        """
        square = layout.square
        if diagonals is None or bias is not None or not score.heads_apart or square.rows != square.columns:
            return None
        sizes = (square.chunk, square.heads, square.groups)
        shifts = _shifts(diagonals, square)
        if len(shifts) > _MOST_DIAGONALS or not all(isinstance(size, int) for size in sizes):
            return None
        # All of a diagonal is taken: no rule may call one of its blocks open.
        if any(first <= i + shift < end for i, (first, end) in enumerate(diagonals.left) for shift in shifts):
            return None
        strips = _Strip.all(layout.mask, square, shifts)
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
        keys, values = self._along(keys), self._along(values)
        return [x[0] for x in self._pooled(way, m, i, 1, queries, keys, values)]

    def starts(self, way, m, queries, keys, values):
        queries = self._filled(queries)
        keys, values = self._along(keys), self._along(values)

        def over_runs(r, *arrays):
            found = self._pooled(way, m, r * self.run, self.run, queries, keys, values)
            return [array.write(r, x) for array, x in zip(arrays, found, strict=True)]

        arrays = [self._array(x.shape[1:], x.dtype) for x in way.start(queries, values[0])]
        states = [self._whole(array) for array in loop(0, self.runs, over_runs, *arrays)]
        return lambda i: [x[i] for x in states]

    def _pooled(self, way, m, i, run, queries, keys, values):
        """Of so many blocks of queries from the i-th on: what `way` has of them, after all strips."""
        query = _taken(queries, i, run)  # (r, c, G, R, X)
        keys, values = ([_taken(x, i, run) for x in along] for along in (keys, values))
        states, pieces = [], self._visible(i, run)
        for strip in self.strips:
            rows = self._rows(query, strip)
            state = way.start(rows, values[0])
            for piece in strip.pieces:
                number, visible = next(pieces)
                key, value = (x[piece.diagonal][..., piece.low : piece.high, :] for x in (keys, values))
                scores = self.score.scores(self.square, rows, key, ())
                scores = tf.where(visible, scores, tf.constant(way.hidden(scores.dtype), scores.dtype))
                state = way.more(*state, scores, value, self._numbers(m, i, run, number))
            states.append(state)
        return [self._joined(parts) for parts in zip(*states, strict=True)]

    def pulled(self, pulls, m, queries, keys, values, *of_queries):
        queries, *of_queries = map(self._filled, (queries, *of_queries))
        keys, values = self._along(keys), self._along(values)

        def over_runs(r, *arrays):
            found = self._pulled(pulls, m, r * self.run, queries, keys, values, of_queries)
            return tf.nest.map_structure(lambda array, x: array.write(r, x), [*arrays], found)

        arrays = [[self._array(x.shape[1:], x.dtype) for x in along] for along in ([queries], keys, values)]
        (of_query,), *of_tokens = loop(0, self.runs, over_runs, *arrays)
        sums = []
        for of_token in of_tokens:
            along = zip(self.shifts, of_token, strict=True)
            blocks = [moved(self._whole(array), shift, self.square.key_blocks) for shift, array in along]
            sums.append(array_of(tf.add_n(blocks)))
        of_query = self._whole(of_query)
        return lambda i: of_query[i], *sums

    def _pulled(self, pulls, m, i, queries, keys, values, of_queries):
        """Gradients of a run of blocks of queries; along each diagonal those of their keys, and of their values."""
        run = self.run
        query, *of_query = (_taken(x, i, run) for x in (queries, *of_queries))
        keys, values = ([_taken(x, i, run) for x in along] for along in (keys, values))
        shifted_keys, values = [self.score.prepared_keys(x) for x in keys], [pulls.values(x) for x in values]
        found, of_keys, of_values = [], [[] for _ in keys], [[] for _ in keys]
        pieces = self._visible(i, run)
        for strip in self.strips:
            rows, *of_rows = (self._rows(x, strip) for x in (query, *of_query))
            shifted, *of_rows = pulls.rows(self.score, rows, *of_rows)
            of_query_here = tf.zeros_like(rows)
            for piece in strip.pieces:
                number, visible = next(pieces)
                key, shifted_key, value = (
                    x[piece.diagonal][..., piece.low : piece.high, :] for x in (keys, shifted_keys, values)
                )
                scores = self.score.shifted(self.square, shifted, shifted_key, ())
                weights = tf.exp(tf.where(visible, scores, tf.constant(-_INF, scores.dtype)))
                of_scores, of_value = pulls.pull(*of_rows, weights, value, self._numbers(m, i, run, number))
                more, of_key, _ = self.score.pull(self.square, rows, key, (), of_scores)
                of_query_here += more
                around = [[0, 0]] * 3 + [[piece.low, self.square.columns - piece.high], [0, 0]]
                of_keys[piece.diagonal].append(tf.pad(of_key, around))
                of_values[piece.diagonal].append(tf.pad(of_value, around))
            found.append(of_query_here)
        return [[self._joined(found)], [*map(tf.add_n, of_keys)], [*map(tf.add_n, of_values)]]

    def _filled(self, queries):
        """With copies of the last block, as many as the last run lacks: of zeros a division would make NaN."""
        lacks = self.runs * self.run - self.layout.query_blocks
        return tf.concat([queries, *[queries[-1:]] * lacks], 0) if lacks else queries

    def _along(self, keys):
        """For each diagonal, blocks of keys in the order of the queries that see them; zeros beyond the first and last."""
        return [moved(keys, -shift, self.runs * self.run) for shift in self.shifts]

    def _visible(self, i, run):
        """For each piece its number, and what is visible of it in a run from the i-th queries on."""
        for number, (piece, visible) in enumerate(zip(self.pieces, self.visible, strict=True)):
            if self.beyond:
                blocks = tf.range(run) + i + self.shifts[piece.diagonal]
                keys = blocks[:, None] * self.square.columns + tf.range(piece.low, piece.high)  # (r, s)
                inside = (keys >= 0) & (keys < self.square.keys)
                visible = visible & inside[:, None, None, None]  # (r, 1, 1, R, s)
            yield number, visible

    def _numbers(self, m, i, run, piece):
        return [self.number(m, i + k, self.square.key_blocks + piece) for k in range(run)]

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

    def _array(self, shape, dtype):
        return tf.TensorArray(dtype, self.runs, element_shape=[self.run, *shape])

    def _whole(self, array):
        """Runs of blocks as blocks, one for each block of queries."""
        x = array.stack()
        return tf.reshape(x, [self.runs * self.run, *x.shape[2:]])[: self.layout.query_blocks]


class _Piece(NamedTuple):
    """The keys of one block that a strip of queries may see: outside of them it sees none of that block."""

    diagonal: int
    first: int  # of the queries, ...
    end: int
    low: int  # ... and of the keys, within their blocks
    high: int


class _Strip(NamedTuple):
    first: int
    end: int
    pieces: list

    @property
    def queries(self):
        return self.end - self.first

    @classmethod
    def all(cls, mask, square, shifts):
        """Those of a block on these diagonals. None where the mask does not tell by ints, or they see nearly all of it."""
        side, count = square.rows, min(_STRIPS, square.rows)
        edges = [side * p // count for p in range(count + 1)]
        strips = []
        for first, end in zip(edges, edges[1:], strict=False):
            found = [_seen(mask, square, shift, first, end) for shift in shifts]
            if None in found:
                return None
            pieces = [_Piece(d, first, end, low, high) for d, (low, high) in enumerate(found) if low < high]
            strips.append(cls(first, end, pieces))
        numbers = sum(strip.queries * (piece.high - piece.low) for strip in strips for piece in strip.pieces)
        if any(all(piece.diagonal != d for strip in strips for piece in strip.pieces) for d in range(len(shifts))):
            return None  # nobody sees anything there: a rule whose bounds are wide
        return strips if 8 * numbers <= 7 * len(shifts) * side**2 else None


def _seen(mask, square, shift, first, end):
    """Which keys of the blocks on a diagonal these queries of theirs may see, `(low, high)` of each block; None if unknown."""
    side, lows, highs = square.rows, [square.columns], [0]
    for i in range(max(0, -shift), min(square.query_blocks, square.key_blocks - shift)):
        start, stop = i * side + first, min(i * side + end, square.queries)
        if start < stop:
            grid = masks.Grid(square.queries, square.keys, start, 0, stop - start, square.keys)
            low, high = ranges.ends(mask.key_bounds(grid))
            if not (isinstance(low, int) and isinstance(high, int)):
                return None
            begin = (i + shift) * side
            low, high = max(low - begin, 0), min(high - begin, side)
            if low < high:
                lows.append(low)
                highs.append(high)
    return min(lows), max(highs)


def _shifts(diagonals, square):
    """How many blocks further on than the queries the keys of each diagonal are."""
    return [offset // square.columns for offset in diagonals.offsets]


def _taken(blocks, i, run):
    return tf.slice(blocks, [i, *[0] * (len(blocks.shape) - 1)], [run, *blocks.shape[1:]])
