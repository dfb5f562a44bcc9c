"""Findings as text, sweeps as a page; decides nothing."""

from roundoff.report.following import next_commands, saved_line
from roundoff.report.text import explained_text, to_text, watched_text

__all__ = ["explained_text", "next_commands", "saved_line", "to_text", "watched_text"]
