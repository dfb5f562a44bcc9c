"""One finding in full: what its code means in any training, the measurements, and the edits of the fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roundoff.errors import UsageError
from roundoff.report.findings_text import edit_text, edits_say_what_to_write, finding_parts
from roundoff.report.parts import Facts, Note, to_text
from roundoff.runs import Finding, JsonValue, to_json
from roundoff.words import join_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A finding, and what is known about its code."""

    finding: Finding
    means: str | None
    usual_fix: str | None
    """As in docs/my-training-is-wrong.md; the finding's own is about this training."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return it as a JSON object."""
        return {"finding": self.finding.to_object(), "means": self.means, "usual_fix": self.usual_fix}


def explain_finding(findings: Sequence[Finding], name: str) -> Explanation:
    """Return the finding with an id, or the first with a code; a `UsageError` lists those that exist."""
    known = list(_with_related(findings))
    found = [each for each in known if each.id == name] or [each for each in known if each.rule == name]
    if not found:
        ids = join_names(list(dict.fromkeys(each.id for each in known)))
        raise UsageError.explain(f"There is no finding '{name}'.", why=f"found: {ids or 'nothing'}.")
    from roundoff.diagnose.diagnosis import RULES, codes_of

    code = next((code for code in codes_of(RULES) if code.name == found[0].rule), None)
    return Explanation(
        finding=found[0], means=None if code is None else code.means, usual_fix=None if code is None else code.fix
    )


def explanation_text(explained: Explanation) -> str:
    """Lay out an explanation for a terminal."""
    finding = explained.finding
    parts = finding_parts(finding)
    if explained.means is not None:
        parts.append(Note(f"{finding.rule}: {explained.means}"))
    numbers = [item for item in finding.evidence if not (isinstance(item, dict) and "code" in item)]
    facts = [
        ("id", finding.id),
        *(("edit", edit_text(edit)) for edit in finding.edits if not edits_say_what_to_write(finding)),
    ]
    parts.append(Facts([*facts, *(("seen", to_json(item)) for item in numbers)], overflow="keep"))
    return to_text(parts)


def _with_related(findings: Sequence[Finding]) -> Iterator[Finding]:
    for finding in findings:
        yield finding
        yield from _with_related(finding.related)
