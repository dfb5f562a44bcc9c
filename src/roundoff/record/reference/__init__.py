"""The error that one op introduces: its result against the same op on the same inputs, run again more exactly."""

from roundoff.record.reference.judge import Reference, ReferenceKind
from roundoff.record.reference.tally import Introduced

__all__ = ["Introduced", "Reference", "ReferenceKind"]
