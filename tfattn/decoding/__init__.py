"""Side floor: search over a `step` function. Knows no model.

The contract of a step, which every search here shares:

    step(tokens, position, state) -> (logits, state)

    tokens:   int32 (B, L), what is decided so far, padding after it
    position: scalar int32, the last decided position
    state:    nested tensors with the batch as first axis (an encoder's output, caches), or anything without tensors
    logits:   float (B, V), scores of the token at position + 1
"""

from tfattn.decoding.greedy import greedy_search

__all__ = ["greedy_search"]
