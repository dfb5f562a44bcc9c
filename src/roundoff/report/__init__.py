"""Findings as text, sweeps as a page; decides nothing."""

from roundoff.report.text import to_text

__all__ = ["to_text"]
