"""Findings, comparisons and runs as text and pages; decides nothing."""

from roundoff.report.findings_text import answers_text, findings_text, verdict_screen, verdict_text, watched_text

__all__ = ["answers_text", "findings_text", "verdict_screen", "verdict_text", "watched_text"]
