"""Side floor: search over a `step` function. Knows no model.

The contract of a step, which every search here shares:

    step(tokens, position, state) -> (logits, state)

    tokens:   int32 (B, L), what is decided so far, padding after it
    position: scalar int32, the last decided position
    state:    nested tensors with the batch as first axis (an encoder's output, caches), or
              anything without tensors
    logits:   float (B, V), scores of the token at position + 1

Each row stands for itself: a search repeats rows, reorders them and drops them, in the tokens and
in every tensor of the state alike. From step to step a tensor of the state keeps its shape and
dtype: buffers are made in full and filled. A tensor that a step hands back as it got it, the very
same object, counts as a constant and costs nothing to carry. A buffer with an entry for each
position may come as `Past(tensor)`: a step then gets no more positions than it needs.

A search is compiled on TensorFlow, and on JAX where the step is a method of a model or layer, whose
weights it then reads anew at each call. On TensorFlow a Python number or string in the state is
part of what is compiled: another one is compiled anew.
"""

from tfattn._past import Past
from tfattn.decoding.beams import Hypotheses, beam_search
from tfattn.decoding.greedy import greedy_search
from tfattn.decoding.sampling import sample
from tfattn.decoding.translation import translate

__all__ = ["Hypotheses", "Past", "beam_search", "greedy_search", "sample", "translate"]
