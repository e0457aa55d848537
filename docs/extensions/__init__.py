"""What Sphinx is taught for these pages."""
