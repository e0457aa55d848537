"""Floor 3: whole models, made out of layers."""
