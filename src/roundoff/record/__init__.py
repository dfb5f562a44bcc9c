"""Knows where a step begins and ends, sees its ops and calls, and hands events to a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.lazy_names import lazy_names

if TYPE_CHECKING:
    from roundoff.record.recording_block import recording as recording
    from roundoff.record.session import Recording as Recording

__all__ = ["Recording", "recording"]

_HOMES = {"Recording": "roundoff.record.session", "recording": "roundoff.record.recording_block"}

__getattr__ = lazy_names(__name__, _HOMES)
