"""Findings, comparisons and runs as text and pages; decides nothing."""

from roundoff.report.findings_text import explained_text, findings_text, verdict_text, watched_text

__all__ = ["explained_text", "findings_text", "verdict_text", "watched_text"]
