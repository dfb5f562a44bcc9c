"""Scores as a table: one line per tool, over all families and for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.faults.zoo.catalogue import expectations, healthy_trainings
from tests.faults.zoo.running import Results
from tests.faults.zoo.scoring import Answer, By, causes, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A tool, how it was judged, and its answers."""

    tool: str
    by: By
    answers: tuple[Answer, ...]


def judge_all(results: Results, *, bare: Results | None) -> list[Row]:
    """Judge a tool by its words and, if it writes findings, by those too."""
    known, entries = causes(), {entry.title: entry for entry in [*expectations(), *healthy_trainings()]}
    about: Mapping[str, object] = results.about
    ways: list[By] = ["findings", "words"] if about.get("findings") else ["words"]
    is_bare = bare is not None and bare.about == about
    rows = []
    for by in ways:
        answers = []
        for name, result in results.by_name.items():
            beside = None if bare is None or is_bare else bare.by_name.get(name)
            patterns = tuple(str(pattern) for pattern in results.about.get("ignore") or ())
            answers.append(judge(entries[name], result, by=by, known=known, bare=beside, ignore=patterns))
        rows.append(Row(tool=str(about["name"]), by=by, answers=tuple(answers)))
    return rows


def table_of(rows: Sequence[Row]) -> str:
    """Return the scores of tools as Markdown: noticed, cause and place of faults, and healthy trainings blamed."""
    lines = ["| tool | judged by | noticed | cause named | place named | healthy blamed |", "|---|---|---|---|---|---|"]
    for row in rows:
        faulty = [answer for answer in row.answers if not answer.healthy]
        placed = [answer for answer in faulty if answer.place is not None]
        healthy = [answer for answer in row.answers if answer.healthy]
        cells = [
            share(sum(answer.said for answer in faulty), len(faulty)),
            share(sum(answer.cause for answer in faulty), len(faulty)),
            share(sum(bool(answer.place) for answer in placed), len(placed)),
            share(sum(answer.said for answer in healthy), len(healthy)),
        ]
        lines.append(f"| {row.tool} | {row.by} | {' | '.join(cells)} |")
    return "\n".join(lines)


def families_of(rows: Sequence[Row]) -> str:
    """Return, as Markdown, for how many faults of each family each tool names the cause."""
    families = list(dict.fromkeys(cause.family for cause in causes().values()))
    lines = [f"| cause named | {' | '.join(families)} |", f"|---|{'---|' * len(families)}"]
    for row in rows:
        cells = []
        for family in families:
            answers = [answer for answer in row.answers if answer.family == family]
            cells.append(share(sum(answer.cause for answer in answers), len(answers)))
        lines.append(f"| {row.tool}, by {row.by} | {' | '.join(cells)} |")
    return "\n".join(lines)


def share(part: int, whole: int) -> str:
    """Return a share as `3 of 4`; `none` of nothing."""
    return f"{part} of {whole}" if whole else "none"
