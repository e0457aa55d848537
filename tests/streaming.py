"""Problems for the streamed path, and both paths' outputs and gradients of them."""

import numpy as np
import tensorflow as tf

from tfattn import attend, masks
from tfattn.core import kernels
from tfattn.core import scores as score_functions
from tfattn.core.paths.blockwise import attend as streamed

B, H, T, S, D, V = 2, 4, 13, 17, 5, 3

UPSTREAM = np.random.default_rng(5).normal(size=(B, H, T, V))
SCORES = ["scaled dot", "dot", "additive", "additive by head", "gaussian", "epanechnikov"]
MASKS = {
    "none": lambda rng: None,
    "causal": lambda rng: masks.causal(),
    "window": lambda rng: masks.window(3),
    "causal & window": lambda rng: masks.causal() & masks.window(4),
    "padding": lambda rng: masks.padding(rng.integers(0, S + 1, B)),
    "padding by query": lambda rng: masks.padding(rng.integers(0, S + 1, (B, T))),
    "prefix | causal": lambda rng: masks.prefix(rng.integers(0, 9, B)) | masks.causal(),
    "prefix of one number": lambda rng: masks.prefix(np.int64(rng.integers(0, 9))),
    "~window": lambda rng: ~masks.window(5),
    "~causal": lambda rng: ~masks.causal(),
    "~(padding & window)": lambda rng: (
        ~(masks.padding(rng.integers(0, S + 1, B)) & masks.window(6))
    ),
    "segments": lambda rng: masks.segments(rng.integers(0, 3, (B, T)), rng.integers(0, 3, (B, S))),
    "explicit": lambda rng: masks.explicit(rng.random((T, S)) < 0.5),
    "explicit by row": lambda rng: masks.explicit(rng.random((B, T, S)) < 0.5),
    "explicit by head": lambda rng: masks.explicit(rng.random((B, H, T, S)) < 0.5),
    "explicit keys": lambda rng: masks.explicit(rng.random((B, 1, S)) < 0.5),
    "keys in the middle": lambda rng: masks.explicit(
        (np.arange(S) > 5) & (np.arange(S) < rng.integers(4, S, (B, 1, 1)))
    ),
    "~padded keys": lambda rng: (
        ~masks.explicit(np.arange(S) < rng.integers(0, S + 1, (B, 1, 1, 1)))
    ),
    "all keys or none": lambda rng: masks.explicit(rng.random((B, 1, 1)) < 0.5),
    "nothing": lambda rng: masks.prefix(0),
}
BIASES = {
    "none": None,
    "square": (T, S),
    "full": (B, H, T, S),
    "by head and key": (1, H, 1, S),
    "by query": (B, 1, T, 1),
}


def scored(name, width, heads, rng):
    """(score function, its parameters)."""
    if name == "additive":
        return score_functions.additive, [rng.normal(size=(width, 1))]
    if name == "additive by head":
        return score_functions.additive, [rng.normal(size=(heads, width, 1))]
    if name in ("gaussian", "epanechnikov"):
        return score_functions.log_kernel(kernels.get(name)), []
    return {"dot": score_functions.dot_product, "scaled dot": score_functions.scaled_dot_product}[
        name
    ], []


def problem(
    seed, score="scaled dot", heads=(H, H), bias="none", dtype="float32", width=D, at_edges=False
):
    """(score function, arguments): query, key, value, parameters and bias as one list of tensors.

    `at_edges` lets pairs come as near to the edge of a kernel's support as they like.
    """
    rng = np.random.default_rng(seed)
    function, parameters = scored(score, width, heads[0], rng)
    scale = 0.3 if score == "epanechnikov" else 1.0  # so that some keys lie within its support
    arrays = [
        scale * rng.normal(size=(B, heads[0], T, width)),
        scale * rng.normal(size=(B, heads[1], S, width)),
    ]
    if score == "epanechnikov" and not at_edges:
        # On a grid no pair is nearer to the edge of the support than 1 − u² = 1/64. Nearer, the
        # slope 2u / (1 − u²) has no bound, and multiplies what float32 leaves of a difference that
        # is 0.
        arrays = [np.round(8 * array) / 8 for array in arrays]
    arrays += [rng.normal(size=(B, heads[1], S, V)), *parameters]
    if BIASES[bias]:
        arrays.append(rng.normal(size=BIASES[bias]))
    return function, [tf.constant(x, dtype) for x in arrays]


def pulled(function, arguments, mask, path, biased=False, block=(4, 6), **options):
    """Output, and the gradient of a fixed functional of it, of each argument."""
    query, key, value, *rest = arguments
    bias = rest[-1] if biased else None
    parameters = rest[:-1] if biased else rest
    upstream = tf.constant(UPSTREAM, query.dtype)
    if len(query.shape) == 3:
        upstream = upstream[:, 0]
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        if path == "dense":
            output = attend(query, value, key, function, parameters, mask, bias, path="dense")
        else:
            output = streamed.attend(
                query, value, key, function, parameters, mask, bias, block=block, **options
            )
    return [output, *tape.gradient(output, arguments, upstream)]


def assert_close(these, those, tolerance=2e-4):
    for this, that in zip(these, those, strict=True):
        np.testing.assert_allclose(
            np.asarray(this, "float64"), np.asarray(that, "float64"), tolerance, tolerance
        )


def wide(arguments):
    return [tf.cast(x, "float64") for x in arguments]
