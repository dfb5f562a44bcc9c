"""Findings as text, sweeps as a page; decides nothing."""

from roundoff.report.text import explained_text, to_text, watched_text

__all__ = ["explained_text", "to_text", "watched_text"]
