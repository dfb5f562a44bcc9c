"""Rules for numbers that are too large, too small or too inexact for their format, and ranges of tensors."""
