"""Searches over a `step` function, for any model.

A search is an object with options: `GreedySearch()`, `BeamSearch(num_beams=5)`,
`Sampling(temperature=0.8)`, or your own `Search`. Call it, or pass it to `translate`.

Every search calls a step in the same way:

    step(tokens, position, state) -> (logits, state)

    tokens:   int32 (B, L), the tokens written so far, then padding
    position: scalar int32, the position of the last written token
    state:    nested tensors with the batch as first axis (an encoder's output, caches), or
              anything without tensors
    logits:   float (B, V), scores of the token at position + 1

Rows must not depend on each other: a search repeats rows, reorders them and drops them, in the
tokens and in every tensor of the state. A tensor of the state keeps its shape and dtype from step
to step: a buffer has its full size from the start, and steps fill it. If a step returns the very
same tensor object that it received, the tensor counts as a constant and costs nothing to carry. A
buffer with an entry for each position may be wrapped as `Past(tensor)`: a step then gets no more
positions than it needs. A state that is a dict may have an entry "prompt", integers (B, P + 1), the
first P tokens of each row, 0 where there is none and in the last column: the step gives these
tokens probability 1, and no rule changes that. An end token in a prompt ends the row
only as the prompt's last token.

Padding follows the end of a row, and no search chooses it (unless padding and end are the same
token). Beam search does not renormalize the probabilities of the other tokens.

A search is compiled on TensorFlow and on JAX, once for a step and the shapes of the state; on
PyTorch it runs eagerly. Each call reads the variables of the step again. A Python number or string
in the state is part of the compiled function: another value compiles another function. So are
attributes of the step's model and of its layers that are numbers, strings or tuples of them: the
call after a change compiles anew. Names with an underscore, lists and dicts are not compared.
"""

from tfattn._shared import Past
from tfattn.decoding import rules
from tfattn.decoding.beams import BeamSearch, Hypotheses
from tfattn.decoding.ensemble import Ensemble
from tfattn.decoding.pooled import PooledBeamSearch
from tfattn.decoding.sampling import Sampling
from tfattn.decoding.search import GreedySearch, Search
from tfattn.decoding.stepper import Stepper
from tfattn.decoding.translate import (
    ScoredText,
    log_probabilities,
    translate,
    translate_n_best,
    translate_stream,
)

__all__ = [
    "BeamSearch",
    "Ensemble",
    "GreedySearch",
    "Hypotheses",
    "Past",
    "PooledBeamSearch",
    "Sampling",
    "ScoredText",
    "Search",
    "Stepper",
    "log_probabilities",
    "rules",
    "translate",
    "translate_n_best",
    "translate_stream",
]
