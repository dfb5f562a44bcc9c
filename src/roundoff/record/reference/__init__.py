"""The error that one op introduces: its result against the same op on the same inputs, run again more exactly."""

from roundoff.record.reference.judge import Judge, Reference, ReferenceKind
from roundoff.record.reference.tally import Introduced

__all__ = ["Introduced", "Judge", "Reference", "ReferenceKind"]
