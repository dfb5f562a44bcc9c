"""Says how good an answer a command's output is: fault noticed, cause named, place named, healthy training blamed."""

from __future__ import annotations

import re
import signal
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from tests.faults.zoo.catalogue import FOLDER, Expected
from tests.faults.zoo.running import SCRIPT, Result, ZooError

By = Literal["words", "findings"]
ALARM = re.compile(
    r"(?<![a-z])(nan|inf|infinity|\w*warning|\w*error|\w*exception|traceback|fatal|killed)(?![a-z])", re.I
)
"""What counts as said where there is no bare run to compare with: Python's own ways to complain, and bad numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """How tools may name the cause of a fault, and the family that the fault belongs to."""

    family: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How good one answer is. Of a healthy training only `said` has a meaning: it was blamed."""

    name: str
    family: str
    """Of the fault; empty for a healthy training."""
    said: bool
    cause: bool = False
    place: bool | None = None
    """None where expected.toml gives no place that words can name."""

    @property
    def healthy(self) -> bool:
        """Say whether there was nothing to find."""
        return not self.family


def causes() -> dict[str, Cause]:
    """Return the words for each fault, from causes.toml."""
    tables = tomllib.loads((FOLDER / "causes.toml").read_text())
    return {code: Cause(family=table["family"], words=tuple(table["words"])) for code, table in tables.items()}


def judge(
    entry: Expected,
    result: Result,
    *,
    by: By,
    known: Mapping[str, Cause],
    bare: Result | None = None,
    ignore: Sequence[str] = (),
) -> Answer:
    """Judge one output: by its words, or by the findings that the command wrote, which are held to expected.toml."""
    family = known[entry.rule].family if entry.rule else ""
    if by == "findings":
        return _judge_findings(entry, result, family)
    said = result.code not in (0, None) or bool(lines_said(result, bare=bare, ignore=ignore))
    if entry.rule is None or not said:
        return Answer(name=entry.title, family=family, said=said, place=_missed(place_patterns(entry)))
    text = _plain(f"{result.output}\n{_as_a_shell_says(result.code)}")
    patterns = place_patterns(entry)
    return Answer(
        name=entry.title,
        family=family,
        said=True,
        cause=any(_has_words(text, words) for words in (entry.rule, *known[entry.rule].words)),
        place=any(re.search(pattern, result.output, re.I) for pattern in patterns) if patterns else None,
    )


def _as_a_shell_says(code: int | None) -> str:
    """Return what a user reads of a process that a signal ended: `Killed`."""
    return signal.strsignal(-code) or "" if code is not None and code < 0 else ""


def _missed(patterns: Sequence[str]) -> bool | None:
    return False if patterns else None


def _judge_findings(entry: Expected, result: Result, family: str) -> Answer:
    """Judge by findings: the first one has the rule, and all that expected.toml says of its place."""
    if result.findings is None:
        return Answer(name=entry.title, family=family, said=False, place=None if entry.healthy else False)
    found = [_as_reported(finding) for finding in result.findings]
    if entry.healthy:
        return Answer(name=entry.title, family="", said=any(finding.severity != "note" for finding in found))
    is_named = bool(found) and found[0].rule == entry.rule
    return Answer(
        name=entry.title,
        family=family,
        said=bool(found),
        cause=is_named,
        place=is_named and entry.at_line_of(SCRIPT).is_met_by(found[0]),
    )


def _as_reported(finding: Mapping[str, Any]) -> Any:
    """Return a finding with every field that expected.toml may ask for; what a tool does not know may be left out."""
    if "rule" not in finding:
        raise ZooError(f"A finding has no 'rule': {dict(finding)}")
    fields = ("step", "site", "op", "parameter", "rank", "source")
    texts = {name: finding.get(name) or "" for name in ("title", "why", "fix")}
    related = [_as_reported(other) for other in finding.get("related") or []]
    places = {name: finding.get(name) for name in fields}
    if places["source"] is not None:
        places["source"] = str(places["source"]).rpartition("/")[2]
    return SimpleNamespace(
        rule=finding["rule"], severity=finding.get("severity", "error"), related=related, **texts, **places
    )


def lines_said(result: Result, *, bare: Result | None, ignore: Iterable[str] = ()) -> list[str]:
    """Return the lines that the tool added to what the script prints by itself, short of those to ignore.

    Numbers may differ. Without a bare run, the lines in which something is complained about.
    """
    lines = [line for line in result.output.splitlines() if line.strip()]
    lines = [line for line in lines if not any(re.search(pattern, line) for pattern in ignore)]
    if bare is None:
        return [line for line in lines if ALARM.search(line)]
    printed = {_without_numbers(line) for line in bare.output.splitlines()}
    return [line for line in lines if _without_numbers(line) not in printed]


def _without_numbers(line: str) -> str:
    return re.sub(r"[-+]?[0-9][0-9.e+-]*", "#", line.strip())


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+", " ", re.sub(r"[`'\"()]", "", text)).lower()


def _has_words(text: str, words: str) -> bool:
    """Say whether plain text holds the words, not in the middle of a word."""
    return re.search(rf"(?<![a-z]){re.escape(_plain(words))}", text) is not None


def place_patterns(entry: Expected) -> list[str]:
    """Return patterns of which one names the place: its line, its module, its parameter or its op."""
    patterns = []
    if entry.source:
        line = entry.source.rpartition(":")[2]
        patterns += [rf"{re.escape(SCRIPT)}:{line}\b", rf'{re.escape(SCRIPT)}", line {line}\b']
    if entry.site and not entry.site.startswith("<") and not entry.site.isdigit():
        patterns.append(_as_name(entry.site))
    if entry.parameter:
        patterns.append(_as_name(entry.parameter))
    if entry.op:
        op = entry.op.removeprefix("aten.").partition("#")[0].strip("_")
        patterns.append(rf"(?<![a-z]){op}(?![a-z])|(?<![a-z]){op.replace('_', '')}backward")
    return patterns


def _as_name(name: str) -> str:
    return rf"(?<![\w.]){re.escape(name)}(?![\w])"
