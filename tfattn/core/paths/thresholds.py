"""Every size that was measured and not derived: what each one trades.

They were found on machines with two cores; `docs/performance.md` has the measurements. A result
never depends on them beyond rounding.
"""

# When attention goes block by block (`paths.choice`).
MIN_TOKENS = 64  # of queries and of keys: for fewer the square is no larger than the operands
MIN_PAIRS = 2**18  # T · S of a head: for fewer, fetching blocks costs more than it saves
MIN_SCORES = 2**23  # of all rows and heads, 32 MB: fewer stay in reach of the caches as they are
MIN_WIDE_NUMBERS = (
    2**24
)  # likewise pairs times width, where a score holds that many: compiled ones must earn it
UNKNOWN_BATCH = 16  # rows, where the graph alone will know: more would stream too seldom

# The size of a block (`blockwise.tiling`).
BLOCK_SCORES = (
    2**18
)  # scores of a block, 1 MB: two blocks stay in the cache; fewer make small products
BLOCK_KEYS = 512  # keys of a block: wider ones skip less under a mask
NARROW_BLOCK_KEYS = (
    256  # where a query sees fewer than NARROW_KEYS: a block wastes less at its edges
)
NARROW_KEYS = 1024
MIN_BLOCK_QUERIES = 16  # below, a product is too small to be worth a block
SHARED_BLOCK_NUMBERS = (
    2**20
)  # numbers of a block of all heads together: by-head masks, scores of one's own
ADDITIVE_BLOCK_NUMBERS = 2**22  # the same of a compiled score, which holds an eighth of them
MATRICES_PER_STEP = 8  # of a block of all heads: as many as a product has threads for

# How many are computed at a time.
STEPS_AT_ONCE = 2  # one step keeps the cores busy while another waits: more holds more blocks
ADDITIVE_STRIPS = 8  # parts of a compiled block: more hold less and are smaller products
SHARED_CALLS = (
    64  # traced kinds of calls that are kept: more hold memory for what is not called again
)

# Local attention (`blockwise.local`).
LOCAL_MAX_KEYS = 1024  # keys that a query sees: beyond, the plain blocks waste as little
LOCAL_FEW_KEYS = (
    256  # keys, up to which blocks of LOCAL_SMALL_BLOCK tokens waste less than LOCAL_BLOCK
)
LOCAL_SMALL_BLOCK, LOCAL_BLOCK = 64, 128
LOCAL_SCORES = 2**20  # scores of a run of blocks: more are larger products and more memory
LOCAL_MIN_BLOCKS = 8  # of queries: of fewer, several heads fill a plain block as well
LOCAL_MAX_WASTE = 1.5  # blocks of keys computed for each one that the mask leaves
