"""Floor 1: pure functions of tensors. No layer and no state."""
