"""A recurrent encoder, and a recurrent decoder with attention."""
