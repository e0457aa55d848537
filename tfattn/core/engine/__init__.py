"""The ways to compute attention: each gives the same result from the same arguments."""

# The Keras backends that have a streamed path.
STREAMING_BACKENDS = ("jax", "tensorflow", "torch")
