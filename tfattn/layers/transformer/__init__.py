"""Blocks of a Transformer, their norms and feed-forward layers."""
