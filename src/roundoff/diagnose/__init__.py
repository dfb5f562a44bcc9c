"""Turns what a run holds into findings."""

from roundoff.diagnose.diagnose import Diagnosis, diagnose_run
from roundoff.diagnose.nonfinite import first_nonfinite
from roundoff.diagnose.origin import Liveness, OriginPlace, find_origin
from roundoff.diagnose.spike import Spike, SpikeDetector

__all__ = [
    "Diagnosis",
    "Liveness",
    "OriginPlace",
    "Spike",
    "SpikeDetector",
    "diagnose_run",
    "find_origin",
    "first_nonfinite",
]
