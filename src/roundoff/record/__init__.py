"""Knows where a step begins and ends, sees its ops and calls, and hands events to a run."""

from roundoff.record.session import IncompleteRecordingWarning, Recording, recording

__all__ = ["IncompleteRecordingWarning", "Recording", "recording"]
