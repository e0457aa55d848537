"""Layers that attend: scores, one head, many heads, kernel regression."""
