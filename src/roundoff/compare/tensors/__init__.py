"""Whole tensors that two programs saved at the same places."""
