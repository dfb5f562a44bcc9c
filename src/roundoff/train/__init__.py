"""The reference trainer, and the data it needs no download for."""

from roundoff.train.digits import load_digits, train_test

__all__ = ["load_digits", "train_test"]
