"""The implementations of attention, all with the same result for the same arguments."""

# The Keras backends with a streamed path.
STREAMING_BACKENDS = ("jax", "tensorflow", "torch")
