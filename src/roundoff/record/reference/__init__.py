"""The error that one op introduces: its result against the same op on the same inputs, run again more exactly."""

from roundoff.record.reference.judge import IntroducedError, OpJudge, Reference, ReferenceKind

__all__ = ["IntroducedError", "OpJudge", "Reference", "ReferenceKind"]
