"""Sizes that were measured and not derived: what each one trades.

They were found on machines with two cores; `docs/performance.md` has the measurements. A result
never depends on them beyond rounding. Tables have an entry for CPUs, and one for other devices,
which was not tuned on one: it follows from what scores take of a memory of 16 GB and more, and from
how much work keeps such a device busy.
"""

from typing import NamedTuple

# When attention goes block by block (`engine.dispatch`).


class Least(NamedTuple):
    """From which sizes on.

    Attributes:
        tokens: queries, and keys. For fewer the scores are no larger than the operands.
        pairs: T · S of a head. For fewer, fetching blocks costs more than it saves.
        scores: of all rows and heads. On a CPU 32 MB: fewer stay in reach of the caches as they
            are. Elsewhere 512 MB: fewer fit, and few large products are quicker than many small.
        wide_numbers: pairs times width, where a score is no product. A compiled one must earn its
            compilation.
        fused_pairs: T · S of a head, where the backend has a kernel of its own for the call.
    """

    tokens: int
    pairs: int
    scores: int
    wide_numbers: int
    fused_pairs: int


LEAST = {
    "cpu": Least(64, 2**18, 2**23, 2**24, 2**18),
    "other": Least(64, 2**20, 2**27, 2**28, 1),
}
# Rows of a batch that the graph alone will know. With fewer, long sequences would stay dense.
UNKNOWN_BATCH = 16

# The size of a block (`tensorflow.tiling`).


class Blocks(NamedTuple):
    """Most that a block has.

    Attributes:
        scores: on a CPU 1 MB. More fall out of the cache; fewer make small products.
        keys: more skip less under a mask.
        shared_numbers: numbers of a block of all heads together: of by-head masks, and of scores
            that are no product.
        compiled_numbers: the same of a compiled score, which holds an eighth of them at a time.
        matrices: in a block of all heads: as many as a product has threads for.
        local_scores: of a run of local attention's blocks. More are larger products, and more
            memory.
    """

    scores: int
    keys: int
    shared_numbers: int
    compiled_numbers: int
    matrices: int
    local_scores: int


BLOCKS = {
    "cpu": Blocks(2**18, 512, 2**20, 2**22, 8, 2**20),
    "other": Blocks(2**22, 2048, 2**24, 2**26, 64, 2**24),
}
# Keys of a block where a query sees fewer than NARROW_KEYS. More waste more at the edges.
NARROW_BLOCK_KEYS = 256
NARROW_KEYS = 1024
# Least queries of a block. With fewer a product is too small to be worth one.
MIN_BLOCK_QUERIES = 16


class Scan(NamedTuple):
    """Sizes of a block of `scan`.

    Attributes:
        numbers: scores, of all rows and heads together; where a score is no product, times its
            width. More hold more, fewer leave more to the loop.
        least: queries and keys.   most: likewise. More skip less under a mask.
    """

    numbers: int
    least: int
    most: int


SCAN = {
    "cpu": Scan(2**21, 64, 512),
    "other": Scan(2**25, 64, 2048),
}

# How much is computed at a time.

# One step keeps the cores busy while another waits. More hold more blocks.
STEPS_AT_ONCE = 2
# Parts of a compiled block. More hold less, and are smaller products.
ADDITIVE_STRIPS = 8
# Kinds of calls whose traced functions are kept. More hold memory for what is not called again.
SHARED_CALLS = 64

# Local attention (`tensorflow.local`).

# Most keys that a query sees. Beyond, plain blocks waste as little.
LOCAL_MAX_KEYS = 1024
# Keys up to which blocks of LOCAL_SMALL_BLOCK tokens waste less than those of LOCAL_BLOCK.
LOCAL_FEW_KEYS = 256
LOCAL_SMALL_BLOCK = 64
LOCAL_BLOCK = 128
# Least blocks of queries. Of fewer, several heads fill a plain block as well.
LOCAL_MIN_BLOCKS = 8
# Most blocks of keys that are computed for each one that the mask leaves.
LOCAL_MAX_WASTE = 1.5
