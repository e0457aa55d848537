"""Recurrent encoders and decoders that attend."""
