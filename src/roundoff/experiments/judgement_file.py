"""The file in which a bisection remembers every run it has judged, so that an interrupted one goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roundoff.errors import BisectError
from roundoff.runs.atomic import write_atomically
from roundoff.runs.lines import append_lines, read_lines
from roundoff.runs.plain_json import JsonValue, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one run said about one set of sites."""

    sites: frozenset[str]
    holds: bool


def open_judgements(path: Path, *, question: str, sites: Sequence[str]) -> list[Judgement]:
    """Return the judgements that a file holds, in order; make the file if there is none, but not its folder.

    The first line says what was asked and about which sites, and each other line what one run said. A last line that
    was cut off is taken off the file.

    Raises:
        BisectError: the file is something else, or belongs to another question or other sites.
        RunFolderError: a line in it is broken.
    """
    header: dict[str, JsonValue] = {"question": question, "all_sites": list(sites)}
    if not path.exists() or path.stat().st_size == 0:
        if not path.absolute().parent.is_dir():
            raise BisectError.explain(
                f"Nothing can be remembered in '{path}'.",
                why="its folder does not exist.",
                fix="make the folder, or name another file.",
            )
        write_atomically(path, f"{to_json(header)}\n".encode())
        return []
    _check_header(path, question=question, sites=sites)
    take_off_what_was_cut(path)
    return [judgement for judgement in read_lines(path, _judgement) if judgement is not None]


def append_judgement(path: Path, judgement: Judgement) -> None:
    """Write a judgement at the end of the file at once: it is then safe from what happens to this process."""
    append_lines(path, [to_json({"sites": sorted(judgement.sites), "holds": judgement.holds})])


def _check_header(path: Path, *, question: str, sites: Sequence[str]) -> None:
    """Refuse a file that this search must neither believe nor change."""
    with path.open("rb") as file:
        starts_as_ours = file.readline().startswith(b'{"question": ')
    # The first line was written with its file, never cut off: without it the file is somebody else's.
    header = next(read_lines(path, dict), None) if starts_as_ours else None
    if header is None:
        raise BisectError.explain(
            f"'{path}' does not hold the judgements of a bisection.",
            why="its first line is none that a bisection writes.",
            fix="name another file, or one that does not exist yet.",
        )
    known = header.get("all_sites")
    same_sites = isinstance(known, list) and {str(site) for site in known} == set(sites)
    if header["question"] != question or not same_sites:
        raise BisectError.explain(
            f"'{path}' remembers another bisection.",
            why=f"it was made by {header['question']}{'' if same_sites else ' with other sites'}.",
            fix="name another file, or delete this one.",
        )


def take_off_what_was_cut(path: Path) -> None:
    """Remove a last line without its newline: the next one would be written behind it."""
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        write_atomically(path, data[: data.rfind(b"\n") + 1])


def _judgement(line: dict[str, JsonValue]) -> Judgement | None:
    """Read a line; the first one holds no judgement."""
    if "question" in line:
        return None
    sites, holds = line.get("sites"), line.get("holds")
    if not isinstance(sites, list) or not isinstance(holds, bool):
        raise ValueError("it does not say which sites were judged, and how")
    return Judgement(sites=frozenset(str(site) for site in sites), holds=holds)
