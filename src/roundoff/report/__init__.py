"""Findings as text, sweeps as a page; decides nothing."""

from roundoff.report.findings_text import explained_text, findings_text, next_commands, saved_line, watched_text

__all__ = ["explained_text", "findings_text", "next_commands", "saved_line", "watched_text"]
