"""Keras layers. They hold weights, project, and call `tfattn.attend`."""
