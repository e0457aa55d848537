"""Sizes that were measured and not derived, with their trade-offs.

They were measured on machines with two cores; `docs/performance.md` has the results. Outputs depend
on them only by rounding. Tables have an entry for CPUs, and an entry for other devices that was not
tuned: it is estimated from a memory of 16 GB and more, and from the work that keeps such a device
busy.
"""

from typing import NamedTuple

# When attention streams (`engine.dispatch`).


class StreamingThresholds(NamedTuple):
    """The least sizes for the streamed path.

    Attributes:
        tokens: queries, and keys. With fewer the scores are no larger than the operands.
        pairs: T · S of a head. With fewer, fetching blocks costs more than it saves.
        scores: over the batch and heads. On a CPU 32 MB: smaller scores stay near the caches.
            Elsewhere 512 MB: smaller scores fit, and a few large products are faster than many
            small products.
        unmasked_scores: likewise for dot products without a mask or a bias, on a CPU with bfloat16
            products: 512 MB. On such processors the dense path is faster, in float32 too.
        wide_numbers: pairs times width, if a score is not a product. Smaller calls do not repay the
            compilation of a score.
        fused_pairs: T · S of a head, where a kernel of the backend supports the call.
    """

    tokens: int
    pairs: int
    scores: int
    unmasked_scores: int
    wide_numbers: int
    fused_pairs: int


STREAMING_THRESHOLDS = {
    "cpu": StreamingThresholds(64, 2**18, 2**23, 2**27, 2**24, 2**18),
    "other": StreamingThresholds(64, 2**20, 2**27, 2**27, 2**28, 1),
}
# Assumed for an unknown batch size. With fewer rows, long sequences would stay dense.
UNKNOWN_BATCH = 16

# The size of a block (`tensorflow.tiling`).


class Blocks(NamedTuple):
    """The greatest sizes of a block.

    Attributes:
        scores: on a CPU 1 MB. More scores leave the cache; fewer make small products.
        keys: larger blocks skip less under a mask.
        shared_numbers: numbers in a block of all heads, for masks that differ by head and for
            scores that are no product.
        compiled_numbers: likewise for a compiled score, which holds an eighth of them at a time.
        matrices: matrices in a block of all heads, enough for the threads of a batched product.
        local_scores: scores in a run of local attention. More scores make larger products, and
            take more memory.
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
# Keys of a block where a query sees fewer than NARROW_KEYS. Larger blocks waste more at the edges.
NARROW_BLOCK_KEYS = 256
NARROW_KEYS = 1024
# Fewest queries of a block. With fewer the product of a block is too small.
MIN_BLOCK_QUERIES = 16


class Scan(NamedTuple):
    """Sizes of a block of `scan`.

    Attributes:
        numbers: scores over the batch and heads; times the width if a score is not a product. More
            take more memory; fewer take more iterations.
        least: queries and keys.   most: queries and keys. Larger blocks skip less under a mask.
    """

    numbers: int
    least: int
    most: int


SCAN = {
    "cpu": Scan(2**21, 64, 512),
    "other": Scan(2**25, 64, 2048),
}

# Work at a time.

# One step keeps the cores busy while another waits. More steps hold more blocks.
STEPS_AT_ONCE = 2
# Most strips of a block of additive scores in the backward pass (`tensorflow.additive`), each by
# one kernel on one core. More strips need less memory, but make kernels too small to be fast.
ADDITIVE_STRIPS = 8
# Kinds of calls whose traced functions are kept. More would keep functions not called again.
SHARED_CALLS = 16
# Numbers of a query from which a call is inlined, and holds no operands: 0.6 s more for a layer.
INLINED_NUMBERS = 2**22

# Local attention (`tensorflow.local`).

# Most keys that a query sees. With more, plain blocks waste as little.
LOCAL_MAX_KEYS = 1024
# Keys up to which blocks of LOCAL_SMALL_BLOCK tokens waste less than blocks of LOCAL_BLOCK.
LOCAL_FEW_KEYS = 256
LOCAL_SMALL_BLOCK = 64
LOCAL_BLOCK = 128
# Fewest blocks of queries. With fewer, several heads fill a plain block as well.
LOCAL_MIN_BLOCKS = 8
# Most blocks of keys computed per visible block.
LOCAL_MAX_WASTE = 1.5
