"""Constants of the engines of kernel regression and of the search for a bandwidth.

Sizes are measured, and affect only speed. Tolerances bound the loss of digits in float64.
"""

# The search on a line (`bandwidth.py`).
MAX_GRID = 500  # bandwidths of the first grid
FINE_STEP = 0.04  # of log h, for a compact kernel or few points: their minima are many and narrow
MIDDLE_STEP = 0.15  # of log h, for other samples
COARSE_STEP = 0.35  # of log h, for many points
FEW_POINTS = 50
MANY_POINTS = 500
NO_ERROR = 1e-20  # error of scaled outputs, whose variance is 1, that is rounding
MINIMA = 3  # local minima of the grid that are refined, for many points
MINIMA_OF_FEW = 8  # local minima of the grid that are refined, for few points
NEAR_LEAST = 1.1  # minima whose error exceeds the least by this factor are not refined

# The search in several columns (`bandwidth.py`).
MAX_SCAN = 1000  # nodes of the grid
MIN_SCAN = 100  # nodes below which a grid does not show the minima
SCAN_PAIRS = 4e6  # pairs that all nodes together may evaluate
RUNS = 12  # runs of the optimizer, from the best starts
POLISHED = 3  # minima that are refined for a compact kernel, whose error has kinks or steps
KINKED = 1e-7  # change of the error at which the other runs end
GAIN = 1e-4  # relative gain of a pass of coordinate descent from which on its step is kept
SAME_START = 0.4  # difference of log bandwidths below which two starts are the same
SAMPLE = 1000  # points from which the bandwidth is chosen first, if there are more
COMPACT_WIDTH = 2.3  # bandwidth of a compact kernel as smooth as a Gaussian of bandwidth 1
WIDEST = 1e4  # greatest bandwidth in half ranges of the data: all points have equal weight
NARROWEST = 1e-9  # least bandwidth in scaled units
MAX_LOGIT = 16.0  # logit of λ, which stays 1e-7 away from its bounds

# Tiles of pairs (`tiles.py`).
THREADED_PAIRS = 2**21  # pairs from which threads are faster
MAX_THREADS = 8
TILE_PAIRS = 2**16  # pairs of a tile: arrays of 0.5 MiB, a few of which fit a cache
FEW_KEYS = 32  # neighbors on either side of a point on a line up to which they are gathered
EXTRA_KEYS = 64  # keys of a tile on a line beyond the window of its first query
BLOCK = 64  # queries in several columns whose keys are found together
TREE_KEYS = 300  # keys of a tile in several columns that take as long as finding a query's

# Digits (`tiles.py`, `fits.py`, `points.py`).
FAR = 1e3  # bandwidths from the middle up to which differences of squares keep small distances
UNDERFLOW = -500.0  # log weight from which on weights would lose digits
LOWEST_LOG = -700.0  # exp below this is subnormal and takes 10 times as long; a weight of 1e-304
NEGLIGIBLE = 2.0**-60  # share of the greatest weight that does not change a float64 sum
NO_SPREAD = 1e-14  # variance of the keys over the squared distance below which no line is fitted
FLAT_CORRELATION = 1e-7  # eigenvalue of the correlations below which its direction has no spread
ILL_CORRELATION = 1e-3  # least eigenvalue below which differences of moments have lost digits
LOST_VARIANCE = 1e-6  # variance over the mean square at which half of its digits are lost

# Sums over boxes on a line (`line.py`).
TERMS = 14  # Chebyshev polynomials per box
BOX = 0.5  # width of a box, in bandwidths
REACH = 9.0  # distance in bandwidths beyond which a weight is below 1e-15 of one at TRUSTED
TRUSTED = 3.0  # distance in bandwidths of a single key whose weight makes a sum accurate
BOX_ROWS = 2**13  # queries evaluated at a time
POINT_COST = 40.0  # time of a point over that of a pair of a tile
BOX_COST = 3000.0  # time of a box over that of a pair of a tile
FLAT_DETERMINANT = 1e-7  # determinant of a local line over (Σ w)² at which half its digits are lost
