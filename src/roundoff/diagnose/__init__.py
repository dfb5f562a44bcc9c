"""Turns what a run holds into findings."""

from roundoff.diagnose.nonfinite import first_nonfinite
from roundoff.diagnose.origin import Liveness, OriginPlace, find_origin

__all__ = ["Liveness", "OriginPlace", "find_origin", "first_nonfinite"]
