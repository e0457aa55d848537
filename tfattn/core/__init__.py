"""Pure functions of tensors. No layer and no state."""
