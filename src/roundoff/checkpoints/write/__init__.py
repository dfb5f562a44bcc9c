"""Converts checkpoints and writes them."""
