"""Findings as plain text, the verdict first."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from roundoff.runs import Finding

WIDTH = 100


def to_text(findings: Sequence[Finding], *, width: int = WIDTH) -> str:
    """Lay out findings, the verdict first; say so plainly when there are none."""
    if not findings:
        return "Nothing found."
    return "\n\n".join(_finding_text(finding, width) for finding in findings)


def _finding_text(finding: Finding, width: int) -> str:
    return "\n".join([
        _headline(finding, width),
        *_indented(f"{_sentence(finding.title)}: {finding.why}.", "  ", "  ", width),
        *_indented(f"{finding.fix}.", "  fix    ", "         ", width),
    ])  # fmt: skip


def _headline(finding: Finding, width: int) -> str:
    place = " / ".join(part for part in (finding.site, finding.op, finding.parameter) if part)
    when = f"step {finding.step}, {finding.phase}" if finding.step is not None else ""
    left = "   ".join(part for part in (finding.rule, place, when) if part)
    if not finding.source:
        return left
    return f"{left}{' ' * max(3, width - len(left) - len(finding.source))}{finding.source}"


def _indented(text: str, first: str, rest: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if not text.startswith(("fp", "bf")) else text
