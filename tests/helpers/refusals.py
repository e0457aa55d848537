"""What is said about bad input: the design's one form."""

import re

import pytest

# Stands for the shape that was wanted, which the message spells out.
HERE = ", here SHAPE"


def message(who, argument, expected, received):
    """The whole sentence, as a pattern. Keras puts lines of its own around what a layer raises."""
    sentence = re.escape(f"{who}: `{argument}` must {expected}. Received: {argument}={received}")
    return sentence.replace(re.escape(HERE), r", here \([^()]*\), or 1 where it repeats")


def table(*rows):
    """Rows of (what is done, who, argument, expected, received), named after what is refused."""
    return pytest.mark.parametrize(
        "act, who, argument, expected, received",
        [pytest.param(*row, id=f"{row[1]} {row[2]} {i}") for i, row in enumerate(rows)],
    )
