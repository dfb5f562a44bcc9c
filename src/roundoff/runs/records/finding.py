"""What a diagnosis found, and what each of its rules answered, as data."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from roundoff.runs.files.plain_json import JsonValue, object_from, object_of


class Severity(StrEnum):
    """How bad it is; a healthy run has no error and no warning."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change to one line of the user's code; several of a fix use the line numbers before any of them."""

    file: str
    """As in `Finding.source`."""
    line: int
    """From 1."""
    action: Literal["replace", "insert", "remove", "change"]
    """Replace `old` by `new`, insert `new` before the line, remove the line; or change it, how is for the user."""
    old: str | None = None
    """Text of the line that is replaced, removed or to be changed."""
    new: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong: what, where, since when, why, and what to change."""

    rule: str
    """The code of the rule that found it, `overflow`."""
    severity: Severity
    confidence: float
    """From 0 to 1."""
    title: str
    why: str
    fix: str
    step: int | None = None
    rank: int | None = None
    phase: str | None = None
    site: str | None = None
    op: str | None = None
    """With its number: `aten.bmm#0`."""
    parameter: str | None = None
    source: str | None = None
    """`model.py:41`."""
    edits: tuple[Edit, ...] = ()
    """The fix as changes to the script, as far as its code says where."""
    evidence: tuple[JsonValue, ...] = ()
    """The measurements it rests on, as JSON values."""
    related: tuple[Finding, ...] = ()
    """Other findings with the same cause."""

    @property
    def id(self) -> str:
        """The code and four digits that are the same for the same fault in every run: they do not depend on the step.

        >>> what = dict(rule="overflow", severity="error", confidence=1, title="", why="", fix="", site="attn")
        >>> Finding(**what, step=3).id, Finding(**what, step=9).id, Finding(**what, op="aten.bmm#0").id
        ('overflow-acb6', 'overflow-acb6', 'overflow-b9f6')
        """
        parts = "\0".join(part or "" for part in (self.rule, self.site, self.op, self.parameter))
        return f"{self.rule}-{hashlib.sha256(parts.encode(errors='replace')).hexdigest()[:4]}"

    def to_object(self) -> dict[str, JsonValue]:
        """Return the finding as a JSON object, its fields in the order of docs/run-folder.md."""
        value = {"id": self.id} | object_of(self)
        value |= {"severity": str(self.severity), "related": [finding.to_object() for finding in self.related]}
        return {name: value[name] for name in FINDING_FIELDS}

    @classmethod
    def from_object(cls, value: JsonValue) -> Finding:
        """Read a finding; a `ValueError` names the field that is missing or holds something else."""
        return object_from(cls, value)


FINDING_FIELDS = (
    "id",
    "rule",
    "severity",
    "confidence",
    "step",
    "rank",
    "phase",
    "site",
    "op",
    "parameter",
    "source",
    "title",
    "why",
    "fix",
    "edits",
    "evidence",
    "related",
)
"""The fields of a finding in the order they are written."""


RULE_FAILED = "rule-failed"
"""The code of the note about a rule that failed."""


class Answer(StrEnum):
    """What a rule answered about a run."""

    FOUND = "found"
    FINE = "fine"
    NOTHING_TO_LOOK_AT = "nothing to look at"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAnswer:
    """The answer of one rule."""

    checks: str
    """What the rule looks at, in words."""
    codes: tuple[str, ...]
    """The codes that its findings may carry."""
    answer: Answer
    reason: str | None = None
    """Why there was nothing to look at, or why the rule failed."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return the answer as a JSON object."""
        return object_of(self) | {"codes": list(self.codes), "answer": str(self.answer)}


def order_findings(findings: Iterable[Finding], *, procedure: Sequence[str] = ()) -> list[Finding]:
    """Sort findings so that the first is the verdict.

    By severity, then by the place of the rule in `procedure` (the rules in the order in which a diagnosis decides;
    others come after them), then the earlier step (a finding without one comes last), then the higher confidence.
    """
    severities = list(Severity)
    places = {rule: place for place, rule in enumerate(procedure)}

    def key(finding: Finding) -> tuple[int, int, float, float]:
        step = math.inf if finding.step is None else finding.step
        place = places.get(finding.rule, len(places))
        return severities.index(finding.severity), place, step, -finding.confidence

    return sorted(findings, key=key)
