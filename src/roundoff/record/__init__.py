"""Knows where a step begins and ends, sees its ops and calls, and hands events to a run."""

from roundoff.record.recording import IncompleteRecordingWarning, recording
from roundoff.record.session import Recording

__all__ = ["IncompleteRecordingWarning", "Recording", "recording"]
