"""The folder of a bisection: what is searched, the trials so far, and the answer; a search that goes on reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roundoff.errors import BisectError, RunFolderError
from roundoff.experiments.experiment_folder import check_name, newest_first
from roundoff.runs import JsonValue, next_free_name, to_json
from roundoff.runs.files.atomic import write_atomically
from roundoff.runs.files.plain_json import read_json_object

_PLAN, _ANSWER = "bisect.json", "answer.json"
_WORDS = {
    "fingerprint": "from before the script or its settings changed",
    "good": "with another --good",
    "bad": "with another --bad",
    "substitute": "with another --switch substitute",
    "switches": "with another --switch",
    "auto": "with --auto in one of them only",
    "with_findings": "with another kind of --judge",
}
"""What sets two searches apart, by the keys of their plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectFolder:
    """Where everything of a bisection is."""

    path: Path

    @property
    def plan(self) -> Path:
        """What is searched: the training, its fingerprint, and the two recipes."""
        return self.path / _PLAN

    @property
    def trials(self) -> Path:
        """Every trial that has ended, one JSON object a line."""
        return self.path / "trials.jsonl"

    @property
    def answer(self) -> Path:
        """What was found; there as soon as nothing is left to ask."""
        return self.path / _ANSWER

    def trial(self, number: int) -> Path:
        """What one trial wrote: its log, its run."""
        return self.path / "trials" / str(number)


def open_bisect_folder(plan: Mapping[str, JsonValue], *, base: Path, name: str | None) -> BisectFolder:
    """Return the folder of this search, made if need be, to go on with one that was interrupted.

    Without a name it is the last of `bisect-1`, `bisect-2`, ... that searches the same and has no answer yet, or the
    next free one.

    Raises:
        UsageError: the name is that of a folder elsewhere.
        BisectError: the folder of that name holds something else.
    """
    check_name(name)
    path = base / name if name is not None else _unfinished(plan, base)
    folder = BisectFolder(path=path or next_free_name(base, "bisect"))
    if folder.path.exists() and any(folder.path.iterdir()):
        _check_same(folder, plan)
        return folder
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        write_atomically(folder.plan, f"{to_json(plan, indent=1)}\n".encode())
    except OSError as error:
        raise BisectError.explain(f"'{folder.path}' cannot be written.", why=f"{error.strerror}.") from error
    return folder


def _unfinished(plan: Mapping[str, JsonValue], base: Path) -> Path | None:
    for path in newest_first(base, "bisect"):
        folder = BisectFolder(path=path)
        if folder.plan.exists() and not folder.answer.exists() and not _differences(folder, plan):
            return path
    return None


def _check_same(folder: BisectFolder, plan: Mapping[str, JsonValue]) -> None:
    if not folder.plan.exists():
        raise BisectError.explain(
            f"'{folder.path}' is taken.", why=f"it holds no bisection: there is no {_PLAN} in it.", fix="--name NEW"
        )
    if different := _differences(folder, plan):
        before = read_json_object(folder.plan).get("subject")
        # Of another training all else is different of itself.
        words = "" if "subject" in different else f", {', '.join(_WORDS.get(key, key) for key in different)}"
        why = f"it is of `{before}`{words}."
        raise BisectError.explain(
            f"'{folder.path}' holds another bisection.", why=why, fix="--name NEW starts in another folder."
        )


def _differences(folder: BisectFolder, plan: Mapping[str, JsonValue]) -> list[str]:
    try:
        before = read_json_object(folder.plan)
    except RunFolderError:
        return [_PLAN]
    return [key for key, value in plan.items() if before.get(key) != value]
