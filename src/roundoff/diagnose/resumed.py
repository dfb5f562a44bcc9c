"""What a resumed run has lost, as a finding."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.compare.resume.compared_part import ComparedPart
from roundoff.compare.resume.resume_comparison import ResumeComparison
from roundoff.diagnose.rule import error
from roundoff.runs import Finding
from roundoff.words import join_words, plural


def finding_about_resumption(comparison: ResumeComparison) -> Finding | None:
    """Return what was not restored, or None if everything that was compared was."""
    lost = comparison.lost
    if not lost:
        return None
    return error(
        rule="resume-incomplete",
        confidence=0.95,
        step=comparison.seam.step,
        title=_title(lost, comparison.seam.step),
        why="\n".join(part.text for part in lost),
        fix="; ".join(dict.fromkeys(part.fix for part in lost)),
        evidence=tuple({"part": str(part.part), **part.numbers} for part in lost),
    )


def _title(lost: Sequence[ComparedPart], step: int) -> str:
    if len(lost) == 1:
        return lost[0].text
    names = join_words([str(part.part) for part in lost])
    return f"{plural(len(lost), 'thing')} were not restored at step {step}: {names}"
