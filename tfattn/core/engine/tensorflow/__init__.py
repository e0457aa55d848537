"""Exact attention in linear memory, for any score, mask and bias.

The T × S matrix of scores is cut into blocks (`tiling`); the forward pass goes over the blocks of a
row (`passes`) with an online softmax, and the backward pass computes each block again. Blocks that
the mask hides are skipped. Windows have separate passes (`local`).
`differentiation` joins both passes into one function with a custom gradient; `run` is the entry.

Source: Rabe, Staats 2021, arXiv:2112.05682; Dao et al. 2022, arXiv:2205.14135 (FlashAttention).
The matrix products here are large enough for a CPU, and any score function works.

Of `core`, only this package imports TensorFlow, and only when it is used; every backend uses its
`gradients`, and imports nothing with it.
"""
