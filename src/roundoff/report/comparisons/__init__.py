"""Comparisons of runs, steps, checkpoints, curves and tensors, each with the same ways to show them."""
