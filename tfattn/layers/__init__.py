"""Keras layers: weights, projections, and the `AttentionCall` that the engine runs."""
