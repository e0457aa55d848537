"""Side floor: figures from plain arrays."""
