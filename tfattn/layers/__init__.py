"""Keras layers: weights, projections, and the `AttentionCall` that the engine runs.

Every layer raises `ValueError` for an argument that is not what its description says, such as a
size that is no positive int or a rate outside [0, 1), and for tensors whose shapes do not fit each
other. `Raises` has what does not follow from the descriptions.
"""
