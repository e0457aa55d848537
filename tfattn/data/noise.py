"""Random numbers by seed and epoch, equal in NumPy and TensorFlow."""

import numpy as np

_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], "uint64")
_KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], "uint32")
_ROUNDS = 10
_SEEDS_KEY = np.array([0x3EC8F720, 0x02461E29], "uint32")  # TensorFlow's key for mixing two seeds


def uniform(seed: int, epoch: int, size: int) -> np.ndarray:
    """Uniform float64 numbers in [0, 1), equal to `tf.random.stateless_uniform` with Philox.

    Args:
        seed, epoch: ints from 0 to 2⁶³ − 1.
        size: the number of values.
    Returns:
        `(size,)`, equal to `tf.random.stateless_uniform((size,), (seed, epoch), dtype="float64",
        alg="philox")`.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", Philox 4×32 with ten
        rounds. As in TensorFlow, the two seeds determine the key and half of the counter.
    """
    (mixed,) = _philox(np.array([[*_halves(seed), *_halves(epoch)]], "uint32"), _SEEDS_KEY)
    counters = np.zeros((-(-size // 2), 4), "uint32")  # two values per counter
    counters[:, 0] = np.arange(len(counters))
    counters[:, 2:] = mixed[2:]
    words = _philox(counters, mixed[:2]).reshape(-1, 2).astype("uint64")[:size]
    # 52 random bits as the fraction of a number in [1, 2).
    bits = np.uint64(1023 << 52) | (words[:, 0] & np.uint64(0xFFFFF)) << np.uint64(32) | words[:, 1]
    return bits.view("float64") - 1.0


def _halves(number: int) -> tuple[int, int]:
    return number & 0xFFFFFFFF, number >> 32


def _philox(counters: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Four 32-bit words for each counter, `(N, 4)`."""
    words = counters
    for round_ in range(_ROUNDS):
        products = words[:, [0, 2]].astype("uint64") * _MULTIPLIERS
        low, high = products.astype("uint32"), (products >> np.uint64(32)).astype("uint32")
        round_key = key + np.uint32(round_) * _KEY_STEPS  # modulo 2³²
        words = np.stack(
            [
                high[:, 1] ^ words[:, 1] ^ round_key[0],
                low[:, 1],
                high[:, 0] ^ words[:, 3] ^ round_key[1],
                low[:, 0],
            ],
            axis=1,
        )
    return words
