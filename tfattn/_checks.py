"""Every argument check of the collection, with one form of message.

    who: `argument` must <expected>. Received: argument=<received>

Floor 0: this module knows no tensor library and no other part of tfattn. A check returns the value
that it let pass, so that a constructor can write
`self.units = _checks.positive_int("AdditiveScore", "units", units)`.
"""

import numbers
from collections.abc import Iterable


def fail(who, argument, expected, received, error=ValueError):
    """Raises `error` in the one form; `expected` begins with a verb, as in "be a positive integer"."""
    raise error(f"{who}: `{argument}` must {expected}. Received: {argument}={received!r}")


def _is_int(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def positive_int(who, argument, value):
    if not _is_int(value) or value <= 0:
        fail(who, argument, "be a positive integer", value)
    return int(value)


def non_negative_int(who, argument, value):
    if not _is_int(value) or value < 0:
        fail(who, argument, "be an integer of at least 0", value)
    return int(value)


def positive_number(who, argument, value):
    # The chained comparison is False for NaN, so that NaN is refused like any other unusable
    # number.
    if not _is_real(value) or not 0 < value < float("inf"):
        fail(who, argument, "be a positive, finite number", value)
    return float(value)


def non_negative_number(who, argument, value):
    if not _is_real(value) or not 0 <= value < float("inf"):
        fail(who, argument, "be a finite number of at least 0", value)
    return float(value)


def probability(who, argument, value):
    """A rate in [0, 1): 1 is left out, since it would drop everything."""
    if not _is_real(value) or not 0 <= value < 1:
        fail(who, argument, "be a number in [0, 1)", value)
    return float(value)


def boolean(who, argument, value):
    if not isinstance(value, bool):
        fail(who, argument, "be True or False", value)
    return value


def strings(who, argument, value):
    """The strings of a collection, as a list."""
    # A string is a sequence of strings too, and would pass letter by letter.
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        fail(who, argument, "be a collection of strings", value)
    found = list(value)
    for one in found:
        if not isinstance(one, str):
            fail(who, argument, "hold strings", one)
    return found


def callable_or_none(who, argument, value):
    if value is not None and not callable(value):
        fail(who, argument, "be callable, or None", value)
    return value


def divides(who, argument, divisor, whole_name, whole):
    """`divisor` parts `whole` without remainder: heads into a width, query heads over key heads."""
    if whole % divisor:
        fail(who, argument, f"divide `{whole_name}`={whole} without remainder", divisor)
    return divisor


def rank(who, argument, shape, ranks, letters):
    """A static shape has one of `ranks`; `letters` shows the shapes that are taken."""
    if len(shape) not in ranks:
        fail(who, argument, f"have shape {letters}", tuple(shape))
    return shape


def same_size(who, argument, size, other_name, other):
    """Two static sizes agree where both are known."""
    if size is not None and other is not None and size != other:
        fail(who, argument, f"have as many tokens as `{other_name}`, which has {other}", size)


def same_batch(who, argument, shape, other_name, other):
    """Two static shapes begin with one batch size where both are known."""
    if None not in (shape[0], other[0]) and shape[0] != other[0]:
        fail(who, argument, f"have the batch size of `{other_name}`, {other[0]}", tuple(shape))


def broadcasts(who, argument, shape, target, letters):
    """A static shape, aligned at the end, broadcasts to `target` wherever both sizes are known."""
    aligned = zip(tuple(shape)[::-1], tuple(target)[::-1], strict=False)
    fits = all(size in (None, 1) or wanted is None or size == wanted for size, wanted in aligned)
    if not fits or len(shape) > len(target):
        fail(
            who,
            argument,
            f"have shape {letters}, here {tuple(target)}, or 1 where it repeats",
            tuple(shape),
        )
    return shape


def boolean_dtype(who, argument, dtype, instead):
    """A mask is boolean; `instead` is the sentence that tells what else the caller may have wanted."""
    if dtype != "bool":
        fail(who, argument, f"be boolean, True where attention is allowed ({instead})", dtype)


def integer_dtype(who, argument, dtype):
    if "int" not in dtype:
        fail(who, argument, "hold integers", dtype)
