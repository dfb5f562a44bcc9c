"""Turns what a run holds into findings."""

from roundoff.diagnose.diagnosis import Diagnosis, diagnose_and_save, diagnose_run
from roundoff.diagnose.loss.spike import Spike, SpikeDetector
from roundoff.diagnose.nonfinite.origin import Liveness, OriginPlace, find_origin
from roundoff.diagnose.nonfinite.values import first_nonfinite

__all__ = [
    "Diagnosis",
    "Liveness",
    "OriginPlace",
    "Spike",
    "SpikeDetector",
    "diagnose_and_save",
    "diagnose_run",
    "find_origin",
    "first_nonfinite",
]
