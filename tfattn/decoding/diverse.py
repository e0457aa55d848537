"""Beams in groups that differ from each other."""

import dataclasses

from tfattn import _checks

__all__ = ["DiverseBeams"]


@dataclasses.dataclass(frozen=True)
class DiverseBeams:
    """Groups of beams, each of which is kept from the tokens that others have just written.

        rank = (Σ log p − strength · n) / length ** length_penalty

    n is how many beams of the groups before have just written the same token. At each step the
    groups choose one after the other, each a beam search of its own. The scores that are returned
    are without the penalty. Two groups may still find the same text; a greater strength makes this
    rarer. Beams with different numbers of `RequiredTokens` are not kept side by side here.

    Args:
        groups: positive int G, which divides `num_beams`.
        strength: finite number of at least 0.
    Raises:
        ValueError: an argument is out of its range; in a search, the groups do not divide the
            beams.
    Example: one beam a group, of which the second takes another first token.
        >>> odds = np.log([[1e-9, 1e-9, 1e-9, 1e-9, 0.6, 0.4]]).astype("float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(odds, 0 * tokens[:, 0], axis=0), state
        >>> groups = tfattn.decoding.DiverseBeams(groups=2, strength=1.0)
        >>> found = beam_search(step, (), 1, 3, num_beams=2, num_results=2, diverse=groups)
        >>> print(np.asarray(found.tokens))
        [[[4 4 4]
          [5 5 5]]]

    Source: Vijayakumar et al. 2018, arXiv:1610.02424, with the Hamming diversity.
    """

    groups: int
    strength: float = 0.5

    def __post_init__(self):
        _checks.positive_int("DiverseBeams", "groups", self.groups)
        _checks.non_negative_number("DiverseBeams", "strength", self.strength)
