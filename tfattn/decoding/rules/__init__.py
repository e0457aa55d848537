"""Rules of decoding: constraints and penalties on the tokens of a search.

    rules = [tfattn.rules.NoRepeatNgrams(3), tfattn.rules.MinLength(5)]
    found = tfattn.BeamSearch(rules=rules)(model.step, state, batch_size, max_length)

Every search takes rules. At each step the rules change the scores of the next token, in the order
given. `GreedySearch` chooses the best of the changed scores, `Sampling` draws from their softmax.
`BeamSearch` sums the changed scores, less log Σ exp of the scores of the step: forbidding a token
makes no other token more likely. Rules do not change rows that have ended, nor the prompt of a
`CausalLM`, whose tokens they can read.

Rules run inside the compiled loop. New numbers, or new tokens in tables of the same shapes, compile
nothing new, except the n of `NoRepeatNgrams`.

If the rules leave a row no token, the row ends there, and the search raises a ValueError at its
end. Inside a function that the caller compiles it cannot raise, and padding fills the row. Each
constructor raises a ValueError for an argument of another kind or range than its page says.
"""

from tfattn.decoding.rules.base import Rule
from tfattn.decoding.rules.tokens import (
    ForbiddenTokens,
    MinLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    TargetPrefix,
    tokens_of,
)

__all__ = [
    "ForbiddenTokens",
    "MinLength",
    "NoRepeatNgrams",
    "RepetitionPenalty",
    "Rule",
    "TargetPrefix",
    "tokens_of",
]
