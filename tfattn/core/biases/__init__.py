"""Biases as objects: numbers added to the scores before the softmax.

Like a mask object, a bias object is evaluated on any rectangle of the T × S matrix of query–key
pairs, so that the engine never needs the whole matrix at once. Biases can be added to each other
and to arrays:

    >>> from tfattn import biases
    >>> bias = biases.alibi(2) + np.zeros((3, 3))
    >>> print(tuple(bias.dense(3, 3).shape))
    (1, 2, 3, 3)

To add a bias, write a class with one method, `on(grid, *parameters)`. An argument of another type,
rank or range than described raises a ValueError.
"""

from tfattn.core.biases.arrays import checked as checked
from tfattn.core.biases.arrays import explicit
from tfattn.core.biases.base import Bias
from tfattn.core.biases.distances import alibi, relative

__all__ = ["Bias", "alibi", "explicit", "relative"]
