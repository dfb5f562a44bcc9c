"""Compares runs of one training whose ranks share its work differently, or one run on one rank with one on many."""
