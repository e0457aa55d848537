"""Where a token stands: what is added to inputs, what turns heads, what biases scores."""
