"""Biases as objects: numbers added to the scores before the softmax.

Like a mask object, a bias object is evaluated on any rectangle of the T × S matrix of query–key
pairs, so that the engine never needs the whole matrix at once. Biases can be added to each other
and to arrays:

    >>> from tfattn import biases
    >>> bias = biases.alibi(2) + np.zeros((3, 3))
    >>> print(tuple(bias.dense(3, 3).shape))
    (1, 2, 3, 3)

To add a bias, write a class with one method, `on(grid, *parameters)`, in a file of its own here.
"""

from tfattn.core.biases.alibi import alibi
from tfattn.core.biases.base import Bias
from tfattn.core.biases.explicit import checked as checked
from tfattn.core.biases.explicit import explicit
from tfattn.core.biases.relative import relative
from tfattn.core.biases.sums import _Sum as _Sum  # defines `+`

__all__ = ["Bias", "alibi", "explicit", "relative"]
