"""Constants of the engines of kernel regression and of the search for a bandwidth.

Sizes are measured: they decide how fast something is found. Tolerances say from where on float64
has lost the digits that would count.
"""

# The search on a line (`bandwidth.py`).
MAX_GRID = 500  # bandwidths of the first grid
FINE_STEP = 0.04  # of log h, for a compact kernel or few points: their minima are many and narrow
MIDDLE_STEP = 0.15  # of log h, for other samples
COARSE_STEP = 0.35  # of log h, for many points
FEW_POINTS = 50
MANY_POINTS = 500
FLAT_ERROR = 1e-9  # a relative change below this: the error does not depend on the bandwidth
MINIMA = 3  # local minima of the grid that are refined, for many points
MINIMA_OF_FEW = 8  # and for fewer
NEAR_LEAST = 1.1  # minima whose error exceeds the least by this factor are not refined
SAME_DISTANCE = 1e-8  # distances with a smaller relative difference are equal but for rounding
MAX_STEPPED = 64  # places up to which a kernel without a slope tries every distance

# The search in several columns (`bandwidth.py`, `spaces.py`, `points.py`).
MAX_SCAN = 1000  # nodes of the grid
MIN_SCAN = 100  # nodes below which a grid does not show the minima
SCAN_PAIRS = 4e6  # pairs that all nodes together may evaluate
RUNS = 12  # of the optimizer, from the best starts
RUNS_OF_SAMPLE = 4  # where the starts are compared on a sample
SAME_START = 0.4  # starts whose log bandwidths differ by less are one
SAMPLE = 1000  # points on which starts are compared, where there are over twice as many
MAX_POLISHED = 4  # bandwidths of a compact kernel that Nelder and Mead's method can polish
COMPACT_WIDTH = 2.3  # bandwidth of a compact kernel as smooth as a Gaussian of bandwidth 1
WIDEST = 1e4  # bandwidth in half ranges of the data: it tells no two points from one another
NARROWEST = 1e-9  # bandwidth in scaled units
MAX_LOGIT = 16.0  # of λ, which so stays 1e-7 away from its ends
LEAST_WIDTH = 1e-30  # λ, so that of unseen categories the others still say something

# Tiles of pairs (`tiles.py`, `near.py`, `regression.py`).
THREADED_PAIRS = 2**21  # from which threads are faster
MAX_THREADS = 8
TILE_PAIRS = 2**13  # of a tile in several columns, at least
LINE_TILE_PAIRS = 2**16  # of a tile on a line: 0.5 MiB an array, so that a few stay in the cache
BLAS_PRODUCT = 2**18  # multiplications up to which OpenBLAS stays in the thread that calls it
FEW_KEYS = 32  # on either side of a point on a line, up to which they are gathered one by one
EXTRA_KEYS = 64  # keys that a tile on a line may hold beyond the window of one query
SORTED_PAIRS = 2**16  # in several columns, from which sorting along one of them is faster
REPLICAS = 32  # of a bootstrap, smoothed at a time

# Digits (`tiles.py`, `near.py`, `left_out.py`, `local.py`).
FAR_SQUARED = 1e5  # squared distance in bandwidths up to which a product keeps 11 digits of it
FAR = 1e3  # spread in bandwidths up to which differences of squares keep the digits of what is near
UNDERFLOW = -500.0  # log weight from which on weights would lose digits
LOWEST_LOG = -700.0  # exp below this is subnormal and takes 10 times as long; a weight of 1e-304
NEGLIGIBLE = 2.0**-60  # share of the greatest weight that a float64 sum does not see
NEGLIGIBLE_NEAR = 1e-24  # share of a weight at distance 0 from which keys are left out in a plane
NO_SPREAD = 1e-14  # variance of the keys over the squared distance: there is no line to fit
FLAT_CORRELATION = 1e-7  # least eigenvalue of the correlations: the keys lie in fewer dimensions
ILL_CORRELATION = 1e-3  # least eigenvalue below which differences of moments have lost digits
LOST_VARIANCE = 1e-6  # variance over the mean square: half of its digits are lost

# Sums over boxes on a line (`line.py`).
TERMS = 14  # Chebyshev polynomials a box
BOX = 0.5  # width of a box, in bandwidths
REACH = 9.0  # in bandwidths: beyond, a weight is below 1e-15 of one at TRUSTED
TRUSTED = 3.0  # in bandwidths: a query that sees less than a key there is left to tiles
BOX_ROWS = 2**13  # queries evaluated at a time
POINT_COST = 40.0  # of a point, in times of a pair of a tile
BOX_COST = 3000.0  # of a box, in times of a pair of a tile
FLAT_DETERMINANT = 1e-7  # of a local line, over (Σ w)²: half of its digits are lost
