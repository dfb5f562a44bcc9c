"""Reads the checkpoints of all frameworks, without executing anything in them."""
