"""What is said about bad input: the design's one form."""

import re

import pytest

# Stands for the shape that was wanted, which the message spells out.
HERE = ", here SHAPE"


def message(who, argument, expected, received):
    """The whole sentence, as a pattern. Keras puts lines of its own around what a layer raises."""
    sentence = re.escape(f"{who}: `{argument}` must {expected}. Received: {argument}={received}")
    return sentence.replace(re.escape(HERE), r", here \([^()]*\), or 1 where it repeats")


def refused(said, received, anything_for_none=False):
    """Expects this sentence on a line of its own, of which `said` is "who: `argument` must ...".

    Args:
        anything_for_none: whether another word may stand for an unknown size.
    """
    sentence = message(*re.fullmatch("(.+?): `(.+?)` must (.+)", said).groups(), received)
    if anything_for_none:
        sentence = sentence.replace("None", r"(None|\w+)")
    return pytest.raises(ValueError, match=rf"(?m)^(\x1b\[1m)?{sentence}(\x1b\[0m)?$")


def table(*rows):
    """Rows of (what is done, who, argument, expected, received), named after what is refused."""
    return pytest.mark.parametrize(
        "act, who, argument, expected, received",
        [pytest.param(*row, id=f"{row[1]} {row[2]} {i}") for i, row in enumerate(rows)],
    )
