"""Turns what a run holds into findings."""

from roundoff.diagnose.nonfinite import first_nonfinite

__all__ = ["first_nonfinite"]
