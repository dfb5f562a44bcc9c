"""Experiments on the last step of a training: the step again, with one thing changed."""
