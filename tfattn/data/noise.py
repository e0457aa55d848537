"""Random numbers of a seed and an epoch, the same in NumPy as in TensorFlow."""

import numpy as np

__all__ = ["uniform"]

_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], "uint64")
_KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], "uint32")
_ROUNDS = 10
_SEEDS_KEY = np.array([0x3EC8F720, 0x02461E29], "uint32")  # TensorFlow's, to mix two seeds


def uniform(seed: int, epoch: int, size: int) -> np.ndarray:
    """Float64 numbers in [0, 1): those of `tf.random.stateless_uniform` by Philox.

    Args:
        seed, epoch: ints from 0 to 2⁶³ − 1.
        size: how many numbers.

    Returns:
        `(size,)`, what `tf.random.stateless_uniform((size,), (seed, epoch), dtype="float64",
        alg="philox")` gives.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", Philox 4×32 with ten
        rounds. As in TensorFlow, the key and half of the counter are drawn from the two seeds.
    """
    (mixed,) = _philox(np.array([[*_halves(seed), *_halves(epoch)]], "uint32"), _SEEDS_KEY)
    counters = np.zeros((-(-size // 2), 4), "uint32")  # each gives two numbers
    counters[:, 0] = np.arange(len(counters))
    counters[:, 2:] = mixed[2:]
    words = _philox(counters, mixed[:2]).reshape(-1, 2).astype("uint64")[:size]
    # 52 random bits below the leading one of a number in [1, 2).
    bits = np.uint64(1023 << 52) | (words[:, 0] & np.uint64(0xFFFFF)) << np.uint64(32) | words[:, 1]
    return bits.view("float64") - 1.0


def _halves(number: int) -> tuple[int, int]:
    return number & 0xFFFFFFFF, number >> 32


def _philox(counters: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Four words of 32 bits for each counter, `(N, 4)`."""
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
