"""Rules of decoding: what a search may write, and what it had better not.

    rules = [tfattn.rules.NoRepeatNgrams(3), tfattn.rules.MinLength(5)]
    found = tfattn.BeamSearch(rules=rules)(model.step, state, batch_size, max_length)

Every search takes them. At each step they change the scores of the next token, one after the other,
in the order given. `GreedySearch` takes the best of the changed scores, `Sampling` draws from their
softmax. `BeamSearch` sums the changed scores, less log Σ exp of those that the step gave: what is
forbidden makes nothing else more likely. Rows that have ended are left alone. So is the prompt of a
`CausalLM`: rules see it, and change no token of it.

Rules run inside of the compiled loop. Other numbers, or other tokens in tables of the same shapes,
compile nothing new, but for the n of `NoRepeatNgrams`.

If no token is left to a row, the row ends there, and the search raises a ValueError at its end.
Inside of a function that the caller compiles it cannot, and the row is padding from there on.
"""

from tfattn.decoding.rules.base import Rule
from tfattn.decoding.rules.beginning import TargetPrefix
from tfattn.decoding.rules.coverage import CoveragePenalty
from tfattn.decoding.rules.forbidden import ForbiddenTokens
from tfattn.decoding.rules.length import MinLength
from tfattn.decoding.rules.repetition import NoRepeatNgrams, RepetitionPenalty
from tfattn.decoding.rules.required import RequiredTokens
from tfattn.decoding.rules.truncation import MinP, TypicalP
from tfattn.decoding.rules.words import tokens_of

__all__ = [
    "CoveragePenalty",
    "ForbiddenTokens",
    "MinLength",
    "MinP",
    "NoRepeatNgrams",
    "RepetitionPenalty",
    "RequiredTokens",
    "Rule",
    "TargetPrefix",
    "TypicalP",
    "tokens_of",
]
