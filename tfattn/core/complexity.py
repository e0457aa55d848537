"""The cost of a layer over a sequence: self-attention, recurrence and convolution side by side."""

from typing import NamedTuple

from tfattn import _checks


class LayerComplexity(NamedTuple):
    """The cost of one layer over a sequence, as leading terms.

    Attributes:
        operations: multiplications.
        sequential_steps: steps that cannot run in parallel.
        longest_path: layers or steps that a signal passes between the two tokens farthest apart.
    """

    operations: int
    sequential_steps: int
    longest_path: int


def complexity(
    n: int, d: int, kernel_size: int = 3, window: int = 128
) -> dict[str, LayerComplexity]:
    """The cost of six kinds of layer over n tokens of width d.

        layer                       operations        sequential steps   longest path
        self-attention              n² d              1                  1
        recurrence                  n d²              n                  n
        convolution                 k n d²            1                  n / k
        dilated convolution         k n d²            1                  log_k n
        separable convolution       k n d + n d²      1                  n / k
        windowed self-attention     r n d             1                  n / r

    These are leading terms, as in the paper: constants, biases and the projections of query, key
    and value are left out. Paths are rounded up to whole layers.

    Args:
        n: positive int, tokens of the sequence.
        d: positive int, width of a token.
        kernel_size: int k of at least 2, tokens under the kernel of a convolution.
        window: positive int r, keys that a query sees in the windowed layer; clipped to n.
            With `masks.window(size)` a query sees 2 · size − 1 keys.
    Returns:
        dict from the layer's name to a named tuple of `operations`, `sequential_steps` and
        `longest_path`, all ints.
    Raises:
        ValueError: a number is not a positive int, or `kernel_size` is 1: such a convolution
            never combines two tokens.
    Example:
        >>> table = complexity(n=1000, d=64, kernel_size=3, window=100)
        >>> table["self-attention"]
        LayerComplexity(operations=64000000, sequential_steps=1, longest_path=1)
        >>> table["dilated convolution"].longest_path
        7

    Source: Vaswani et al. 2017, arXiv:1706.03762, table 1 and section 4.
    """
    n = _checks.positive_int("complexity", "n", n)
    d = _checks.positive_int("complexity", "d", d)
    kernel_size = _checks.positive_int("complexity", "kernel_size", kernel_size)
    if kernel_size == 1:
        _checks.fail("complexity", "kernel_size", "be an integer of at least 2", kernel_size)
    window = min(_checks.positive_int("complexity", "window", window), n)
    convolution = LayerComplexity(kernel_size * n * d * d, 1, -(-n // kernel_size))
    return {
        "self-attention": LayerComplexity(n * n * d, 1, 1),
        "recurrence": LayerComplexity(n * d * d, n, n),
        "convolution": convolution,
        "dilated convolution": convolution._replace(longest_path=_layers(n, kernel_size)),
        "separable convolution": convolution._replace(operations=kernel_size * n * d + n * d * d),
        "windowed self-attention": LayerComplexity(window * n * d, 1, -(-n // window)),
    }


def _layers(n: int, kernel_size: int) -> int:
    """log_k n, rounded up, at least 1: layers of dilation 1, k, k², … see k^layers tokens."""
    layers, seen = 1, kernel_size
    while seen < n:
        layers, seen = layers + 1, seen * kernel_size
    return layers
