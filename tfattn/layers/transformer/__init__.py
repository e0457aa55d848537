"""A Transformer's blocks and what they are made of: norms, feed-forward layers."""
