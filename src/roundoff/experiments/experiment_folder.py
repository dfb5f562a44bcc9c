"""The folder of an experiment: the request, the results so far, the answer; an interrupted experiment resumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from roundoff.errors import RoundoffError, RunFolderError, UsageError
from roundoff.files import write_atomically
from roundoff.runs import JsonValue, next_free_name, to_json
from roundoff.runs.files.plain_json import read_json_object


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentFolder:
    """Where everything of a bisection, a plan or a sweep is stored."""

    kind: ClassVar[str]
    """The command, which names the request file and, without `--name`, the folder: `bisect.json`, `bisect-1`."""
    noun: ClassVar[str]
    """What errors call the experiment: `bisection`."""
    error: ClassVar[type[RoundoffError]]
    differences_in_words: ClassVar[Mapping[str, str]] = {}
    """By key of the request, how two experiments differ; by default `with another KEY`."""

    path: Path

    @property
    def request(self) -> Path:
        """What was requested, as JSON; an experiment resumes only with an equal request."""
        return self.path / f"{self.kind}.json"

    @property
    def trials(self) -> Path:
        """Every finished trial, one JSON object per line."""
        return self.path / "trials.jsonl"

    @property
    def answer(self) -> Path:
        """The answer, which is written when the experiment is finished."""
        return self.path / "answer.json"

    def trial(self, number: int) -> Path:
        """Return the folder of one trial: its log, its run."""
        return self.path / "trials" / str(number)

    @classmethod
    def open(cls, request: Mapping[str, JsonValue], *, base: Path, name: str | None) -> Self:
        """Return the folder of this experiment, created if necessary; an interrupted experiment resumes in its folder.

        Without a name it is the newest of `KIND-1`, `KIND-2`, ... with the same request and no answer yet, or else the
        next free one.

        Raises:
            UsageError: the name leads out of `base`.
            RoundoffError: the folder of that name holds something else, or cannot be written; of the class `error`.
        """
        check_name(name)
        path = base / name if name is not None else cls._find_unfinished(request, base)
        folder = cls(path=path or next_free_name(base, cls.kind))
        if folder.path.exists() and any(folder.path.iterdir()):
            folder._check_same(request)
        else:
            folder.write_request(request)
        return folder

    def write_request(self, request: Mapping[str, Any]) -> None:
        """Create the folder and write what is requested."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.request, f"{to_json(dict(request), indent=1)}\n".encode())
        except OSError as error:
            raise self.error.explain(f"'{self.path}' cannot be written.", why=f"{error.strerror}.") from error

    def read_request(self) -> Mapping[str, Any]:
        """Return what was requested.

        Raises:
            RoundoffError: the folder holds no such experiment; of the class `error`.
            RunFolderError: the file is damaged.
        """
        if not self.request.exists():
            raise self.error.explain(
                f"'{self.path}' holds no {self.noun}.",
                why=f"there is no {self.request.name} in it." if self.path.is_dir() else "there is no such folder.",
                fix=f"name a folder that roundoff {self.kind} wrote: runs/NAME",
            )
        return read_json_object(self.request)

    @classmethod
    def _find_unfinished(cls, request: Mapping[str, JsonValue], base: Path) -> Path | None:
        for path in newest_first(base, cls.kind):
            folder = cls(path=path)
            if folder.request.exists() and not folder.answer.exists() and not folder._differences(request):
                return path
        return None

    def _check_same(self, request: Mapping[str, JsonValue]) -> None:
        if not self.request.exists():
            raise self.error.explain(
                f"'{self.path}' is already in use.",
                why=f"it holds no {self.noun}: there is no {self.request.name} in it.",
                fix="--name NEW starts in another folder.",
            )
        if different := self._differences(request):
            before = read_json_object(self.request).get("subject")
            # If it is another training, everything else differs as a consequence.
            shown = [] if "subject" in different else different
            words = "".join(f", {self.differences_in_words.get(key, f'with another {key}')}" for key in shown)
            raise self.error.explain(
                f"'{self.path}' holds another {self.noun}.",
                why=f"it was made for `{before}`{words}.",
                fix="--name NEW starts in another folder.",
            )

    def _differences(self, request: Mapping[str, JsonValue]) -> list[str]:
        try:
            before = read_json_object(self.request)
        except RunFolderError:
            return [self.request.name]
        return [key for key, value in request.items() if before.get(key) != value]


def newest_first(base: Path, kind: str) -> list[Path]:
    """Return the folders of a kind, the one with the highest number first."""
    return sorted(base.glob(f"{kind}-*"), key=_number, reverse=True)


def check_name(name: str | None) -> None:
    """Raise a `UsageError` if a name leads out of the folder of runs."""
    if name is not None and (Path(name).name != name or name in ("", "..")):
        raise UsageError.explain(
            f"Invalid --name '{name}'.",
            why="it is the name of one folder inside that of --runs.",
            fix="use a plain name, and choose its parent directory with --runs.",
        )


def _number(path: Path) -> int:
    digits = path.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1
