"""What a run was: the contents of run.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from roundoff.errors import RunFolderError
from roundoff.runs.atomic import write_atomically
from roundoff.runs.folder import INFO_NAME, READABLE_BY, VERSION
from roundoff.runs.plain_json import JsonValue, read_json_object, to_json
from roundoff.runs.typed_json import object_from, object_of

Status: TypeAlias = Literal["running", "finished", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What a run was: how it was started, where, and how it ended."""

    version: int = VERSION
    """That of the folder."""
    name: str = ""
    """Empty: the folder's name is taken."""
    command: tuple[str, ...] = ()
    recipe: str | None = None
    seed: int | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, JsonValue] = field(default_factory=dict)
    git_commit: str | None = None
    ranks: int = 1
    started: str = ""
    """ISO 8601 with time zone. Empty: the moment the folder is made."""
    finished: str | None = None
    status: Status = "running"
    notes: tuple[str, ...] = ()
    launch: str | None = None
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    environment: Mapping[str, JsonValue] = field(default_factory=dict)
    """What decides how numbers come out: variables of a fixed list, torch's switches and seed, as step 0 began."""


def write_info(folder: Path, info: RunInfo) -> None:
    """Write run.json whole, or leave it as it was."""
    value = {"version": info.version, "readable_by": READABLE_BY, **object_of(info)}
    write_atomically(folder / INFO_NAME, to_json(value, indent=1).encode())


def read_info(folder: Path) -> RunInfo:
    """Read run.json; a `RunFolderError` says what is missing, broken or too new."""
    path = folder / INFO_NAME
    if not folder.is_dir():
        what = "is a file, not a run folder" if folder.exists() else "does not exist"
        raise RunFolderError.explain(f"'{folder}' {what}.", fix="see which runs there are: roundoff runs")
    if not path.exists():
        raise RunFolderError.explain(
            f"'{folder}' is not a run folder.",
            why=f"it has no {INFO_NAME}.",
            fix="name the folder of one run, as listed by: roundoff runs",
        )
    value = read_json_object(path)
    _check_version(path, value)
    try:
        return object_from(RunInfo, value)
    except ValueError as error:
        raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{error}.") from error


def sketches_line_up(a: RunInfo, b: RunInfo) -> bool:
    """Say whether the sketches of two runs were made with the same signs, so that their difference means something."""
    return (a.version < 2) == (b.version < 2)


def _check_version(path: Path, value: Mapping[str, JsonValue]) -> None:
    readable_by = value.get("readable_by")
    if type(readable_by) is not int:
        raise RunFolderError.explain(f"'{path}' cannot be read.", why="it has no number 'readable_by'.")
    if readable_by > VERSION:
        raise RunFolderError.explain(
            f"'{path}' was written by a newer roundoff.",
            why=f"its folder needs a reader of version {readable_by}, and this one reads up to version {VERSION}.",
            fix="pip install --upgrade roundoff",
        )
