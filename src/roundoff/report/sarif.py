"""Findings as SARIF 2.1.0, the format in which code hosts and editors take what an analysis found."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from roundoff.report.findings_text import describe_answer, message_of
from roundoff.runs import RULE_FAILED, Answer, Finding, JsonValue, Run

if TYPE_CHECKING:
    from roundoff.diagnose import Diagnosis
    from roundoff.diagnose.rule import Code

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "roundoffFinding/v1"
"""The name of our fingerprint: the same finding has the same one when steps, numbers and lines have changed."""


def to_sarif(run: Run, diagnosis: Diagnosis, *, root: Path) -> dict[str, JsonValue]:
    """Return a diagnosis as a SARIF log.

    Every rule that was applied is in it, with its help, and every finding with the file and line that it names. A
    finding without a line is placed at the top of the script, since code hosts leave out what has no place.

    Args:
        run: what was diagnosed.
        diagnosis: what was found in it.
        root: paths are relative to this folder, as far as they are below it.
    """
    codes = _codes_of(diagnosis)
    places = _Places(run, root)
    findings = [finding for finding in diagnosis.findings if finding.rule != RULE_FAILED]
    prints = fingerprints(findings)
    results = [
        _result(finding, index=index, fingerprint=fingerprint, places=places)
        for finding, fingerprint in zip(findings, prints, strict=True)
        for index in [list(codes).index(finding.rule)]
    ]
    driver: JsonValue = {"name": "roundoff", "version": version("roundoff"), "rules": [*map(_rule, codes.values())]}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "invocations": [_invocation(diagnosis)],
                "columnKind": "unicodeCodePoints",
                "results": [*results],
            }
        ],
    }


def fingerprints(findings: Iterable[Finding]) -> list[str]:
    """Return what identifies each finding from run to run: its code, its place in the model, and its file.

    >>> what = dict(rule="overflow", severity="error", confidence=1, title="", why="", fix="")
    >>> same = [Finding(**what, step=3), Finding(**what, step=9)]
    >>> first, second = fingerprints(same)
    >>> first == fingerprints(same[1:])[0], second == f"{first}:2"
    (True, True)
    """
    seen: Counter[str] = Counter()
    found = []
    for finding in findings:
        file = (finding.source or "").rpartition(":")[0]
        op = (finding.op or "").partition("#")[0]
        parts = (finding.rule, finding.site, op, finding.parameter, finding.phase, file)
        key = hashlib.sha256("\0".join(part or "" for part in parts).encode()).hexdigest()[:16]
        seen[key] += 1
        found.append(key if seen[key] == 1 else f"{key}:{seen[key]}")
    return found


def _codes_of(diagnosis: Diagnosis) -> Mapping[str, Code]:
    """Return the codes of all rules that were applied, by name."""
    from roundoff.diagnose.diagnosis import RULES, codes_of

    known = {code.name: code for code in codes_of(RULES)}
    applied = [name for answer in diagnosis.answers for name in answer.codes]
    if not known.keys() >= set(applied):
        from roundoff.diagnose.against import AGAINST_CODES  # comparing loads the recipes, and half of torch with them

        known |= {code.name: code for code in AGAINST_CODES}
    return {name: known[name] for name in applied}


def _rule(code: Code) -> JsonValue:
    text = f"{code.means}\n\nFix: {code.fix}"
    return {
        "id": code.name,
        "shortDescription": {"text": code.means.partition(". ")[0].rstrip(".") + "."},
        "fullDescription": {"text": code.means},
        "help": {"text": text, "markdown": f"{code.means}\n\n**How to fix it**\n\n{code.fix}"},
    }


def _result(finding: Finding, *, index: int, fingerprint: str, places: _Places) -> JsonValue:
    related = [
        {**place, "message": {"text": message_of(each)}} for each in finding.related for place in places.of(each)
    ]
    facts: dict[str, JsonValue] = {"confidence": finding.confidence, "fix": finding.fix}
    facts |= {name: value for name in ("step", "rank", "phase") if (value := getattr(finding, name)) is not None}
    result: dict[str, JsonValue] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": str(finding.severity),
        "message": {"text": message_of(finding)},
        "locations": [*places.of(finding, is_needed=True)],
        "partialFingerprints": {FINGERPRINT: fingerprint},
        "properties": facts,
    }
    return result | ({"relatedLocations": [*related]} if related else {})


def _invocation(diagnosis: Diagnosis) -> JsonValue:
    """Say whether every rule could look, and what was not watched."""
    failed = [describe_answer(answer) for answer in diagnosis.answers if answer.answer is Answer.FAILED]
    said = [("error", text) for text in failed] + [("warning", text) for text in diagnosis.coverage.reasons]
    return {
        "executionSuccessful": not failed,
        "toolExecutionNotifications": [{"level": level, "message": {"text": text}} for level, text in said],
    }


class _Places:
    """Knows where findings are: files below a folder, and sites of the model."""

    def __init__(self, run: Run, root: Path) -> None:
        self._root = root.resolve()
        script = next((Path(word).absolute() for word in run.info.command if word.endswith(".py")), None)
        self._folders = [self._root, *([] if script is None else list(script.parents)[:2])]
        self._script = None if script is None else self._below_root(script)

    def of(self, finding: Finding, *, is_needed: bool = False) -> list[dict[str, JsonValue]]:
        """Return the place of a finding in a list; the top of the script if one `is_needed` and there is no other."""
        name, _, line = (finding.source or "").rpartition(":")
        if line.isdecimal() and not name.startswith("<"):
            uri: str | None = self._uri(name)
        else:
            uri, line = self._script if is_needed else None, "1"
        place: dict[str, JsonValue] = {}
        if uri is not None:
            region: JsonValue = {"startLine": max(1, int(line))}
            place["physicalLocation"] = {"artifactLocation": {"uri": uri}, "region": region}
        site = ".".join(part for part in (finding.site, finding.parameter) if part)
        if site and (place or is_needed):
            place["logicalLocations"] = [{"fullyQualifiedName": site, "kind": "member"}]
        return [place] if place else []

    def _uri(self, name: str) -> str:
        """Return a path as a reference relative to the root; names in findings are shortened (source_lines.py)."""
        path = name.replace("\\", "/")
        found = (self._below_root(folder / path) for folder in self._folders if (folder / path).is_file())
        return next((uri for uri in found if uri is not None), quote(path.lstrip("/")))

    def _below_root(self, path: Path) -> str | None:
        path = path.resolve()
        return quote(path.relative_to(self._root).as_posix()) if path.is_relative_to(self._root) else None
