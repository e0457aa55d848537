"""Floor 2: Keras layers. They hold weights, project, and call the engine."""
