"""What a diagnosis found, what each of its rules answered, and what roundoff failed at or did not see, as data."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal, TypeAlias

from roundoff.lazy_names import lazy_method
from roundoff.runs.files.folder import gaps_path
from roundoff.runs.files.lines import append_lines
from roundoff.runs.files.plain_json import JsonValue, object_from, object_of, to_json
from roundoff.words import join_names, plural


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


_FIGURE = re.compile(r"(?<![\w.])[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
"""A number of a text, and no digit of a name: 3e-4 and 1,024, not `fc1` or `blocks.3`."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
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

    _repr_html_ = lazy_method("roundoff.report.notebook", "finding_html")

    def __repr__(self) -> str:
        place = ", ".join(
            map(str, filter(None, (self.rule, self.site, None if self.step is None else f"step {self.step}")))
        )
        return f"<Finding {place}: {self.title}>"

    @property
    def id(self) -> str:
        """The code and four digits that are the same for the same fault in every run: they do not depend on the step.

        They come from the site, the op and the parameter, and from the rank if it is not 0. Of a finding that has none
        of the three, from its file and from its title without its figures.

        >>> what = dict(rule="overflow", severity="error", confidence=1, title="", why="", fix="", site="attn")
        >>> Finding(**what, step=3).id, Finding(**what, step=9).id, Finding(**what, op="aten.bmm#0").id
        ('overflow-acb6', 'overflow-acb6', 'overflow-b9f6')
        """
        parts = [self.rule, self.site, self.op, self.parameter]
        if not any(parts[1:]):
            parts += [(self.source or "").rpartition(":")[0], _FIGURE.sub("#", self.title)]
        if self.rank:
            parts.append(str(self.rank))
        text = "\0".join(part or "" for part in parts)
        return f"{self.rule}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:4]}"

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


CheckKind: TypeAlias = Literal["probe", "fact", "part", "rule"]

MAX_TRACEBACK_CHARACTERS = 8000
MAX_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One check that raised: a probe, a fact about the training, a part of the watch, or a rule of the diagnosis."""

    check: CheckKind
    name: str
    """Which probe, fact or rule: `half-batch`, `structure`, `overflow`."""
    step: int | None = None
    error: str
    """Type and first line of the exception."""
    traceback: str = ""
    """Python's traceback; the end of it if it is long."""

    @classmethod
    def of(cls, error: BaseException, *, check: CheckKind, name: str, step: int | None = None) -> Failure:
        """Describe an exception that a check raised."""
        first_line = str(error).partition("\n")[0]
        text = "".join(traceback.format_exception(error))
        return cls(
            check=check,
            name=name,
            step=step,
            error=f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__,
            traceback=text[-MAX_TRACEBACK_CHARACTERS:],
        )


def failures_line(failures: Sequence[Failure]) -> str | None:
    """Return the one line that console and page show about failed checks; None if none failed.

    >>> failures_line([Failure(check="probe", name="half-batch", error="KeyError: 'x'")])
    "1 check failed inside roundoff; please report: probe half-batch (KeyError: 'x')"
    """
    if not failures:
        return None
    distinct = list(dict.fromkeys(f"{each.check} {each.name} ({each.error})" for each in failures))
    listed = join_names(distinct, at_most=MAX_LISTED)
    return f"{plural(len(failures), 'check')} failed inside roundoff; please report: {listed}"


GapKind: TypeAlias = Literal["watching", "recording", "part", "replays", "child", "thread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One part of a training that was not watched, or not any more."""

    kind: GapKind
    """watching, recording, part: it stopped; replays: no step is replayed any more; child, thread: one that trained."""
    what: str = ""
    """The part of the watch that stopped, for the user: "checks of losses, gradients and weights"."""
    step: int | None = None
    """Since when."""
    why: str = ""
    rank: int = 0

    def __str__(self) -> str:
        """What a user reads.

        >>> print(Gap(kind="watching", step=120, why="OSError: disk full"))
        watching stopped at step 120 (OSError: disk full)
        """
        where = f" on rank {self.rank}" if self.rank else ""
        since = "" if self.step is None else f" at step {self.step}"
        reason = f" ({self.why})" if self.why else ""
        if self.kind in ("watching", "recording", "part"):
            return f"{self.what or self.kind} stopped{since}{where}{reason}"
        if self.kind == "replays":
            return f"steps were not replayed any more{reason}"
        return f"another {'thread' if self.kind == 'thread' else 'process'} trained and was not watched"


def append_gap(folder: Path, gap: Gap) -> None:
    """Write a gap at once, also from a process that is not the writer of the run; a failure to do so is ignored."""
    with contextlib.suppress(OSError, MemoryError):
        append_lines(gaps_path(folder, rank=gap.rank), [to_json(object_of(gap))])
