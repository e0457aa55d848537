"""The ways to compute attention: each gives the same result from the same arguments."""
