"""A vocabulary of a few words, and the loss without logits made to take it, in blocks of a few
tokens.
"""

import contextlib

import numpy as np
import pytest

from tfattn.training import losses

V = 11


@contextlib.contextmanager
def blocks(numbers=3 * V, rows=1):
    """Blocks of a few tokens, for a vocabulary of a few words."""
    from tfattn.training import streamed  # needs TensorFlow

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "_MIN_VOCABULARY", 1)
        patch.setattr(streamed, "_MIN_ROWS", rows)
        patch.setattr(streamed, "_BLOCK_LOGITS", numbers)
        yield


def assert_alike(ours, theirs, rtol=1e-5, atol=1e-6):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)
