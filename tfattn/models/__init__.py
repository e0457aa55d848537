"""Whole models, made of layers."""
