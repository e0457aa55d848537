"""Positional encodings, rotary positions, and position biases on scores."""
