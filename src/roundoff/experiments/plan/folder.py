"""The folder of a plan: what was asked, the measured step, the trials so far, the recipe; one that goes on reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roundoff.errors import PlanError, RunFolderError
from roundoff.experiments.experiment_folder import check_name, newest_first
from roundoff.runs import JsonValue, next_free_name, to_json
from roundoff.runs.files.atomic import write_atomically
from roundoff.runs.files.plain_json import read_json_object


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFolder:
    """Where everything of a plan is."""

    path: Path

    @property
    def asked(self) -> Path:
        """What was asked for: the training, its fingerprint, the base recipe and the target."""
        return self.path / "plan.json"

    @property
    def sensitivity(self) -> Path:
        """The measured step."""
        return self.path / "sensitivity.json"

    @property
    def trials(self) -> Path:
        """Every trial that has ended, one JSON object a line."""
        return self.path / "trials.jsonl"

    @property
    def recipe(self) -> Path:
        """The recipe to use."""
        return self.path / "recipe.toml"

    @property
    def answer(self) -> Path:
        """What came of it; there as soon as the plan is finished."""
        return self.path / "answer.json"

    def trial(self, number: int) -> Path:
        """What one trial wrote: its log, its run."""
        return self.path / "trials" / str(number)

    def judgements(self, number: int) -> Path:
        """What the bisection of the nth repair has asked."""
        return self.path / f"repair-{number}.jsonl"

    def keep_recipe(self, text: str) -> Path:
        """Write a recipe that is to be tried, and return where: the same text is the same file."""
        path = self.path / "recipes" / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.toml"
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, text.encode())
        return path

    def finish(self, recipe: str, *, answer: dict[str, JsonValue], also: Path) -> None:
        """Write the recipe, here and where else it is wanted, and the answer, which ends the plan."""
        for path in dict.fromkeys((self.recipe, also)):
            try:
                write_atomically(path, recipe.encode())
            except OSError as error:
                raise PlanError.explain(
                    f"'{path}' cannot be written.", why=f"{error.strerror}.", fix=f"the recipe is in '{self.recipe}'."
                ) from error
        write_atomically(self.answer, f"{to_json(answer, indent=1)}\n".encode())


def open_plan_folder(asked: Mapping[str, JsonValue], *, base: Path, name: str | None) -> PlanFolder:
    """Return the folder of this plan, made if need be, to go on with one that was interrupted.

    Without a name it is the last of `plan-1`, `plan-2`, ... that asks the same and has no answer yet, or the next free
    one. One that has an answer is made anew, so that the same command asked twice measures twice.

    Raises:
        UsageError: the name is that of a folder elsewhere.
        PlanError: the folder of that name holds something else.
    """
    check_name(name)
    path = base / name if name is not None else _unfinished(asked, base)
    folder = PlanFolder(path=path or next_free_name(base, "plan"))
    if folder.path.exists() and any(folder.path.iterdir()):
        _check_same(folder, asked)
        return folder
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        write_atomically(folder.asked, f"{to_json(dict(asked), indent=1)}\n".encode())
    except OSError as error:
        raise PlanError.explain(f"'{folder.path}' cannot be written.", why=f"{error.strerror}.") from error
    return folder


def _unfinished(asked: Mapping[str, JsonValue], base: Path) -> Path | None:
    found = [PlanFolder(path=path) for path in newest_first(base, "plan")]
    open_ones = [each for each in found if each.asked.exists() and not each.answer.exists()]
    return next((each.path for each in open_ones if not _differences(each, asked)), None)


def _check_same(folder: PlanFolder, asked: Mapping[str, JsonValue]) -> None:
    if not folder.asked.exists():
        raise PlanError.explain(f"'{folder.path}' is taken.", why="it holds no plan.", fix="--name NEW")
    if different := _differences(folder, asked):
        raise PlanError.explain(
            f"'{folder.path}' holds another plan.",
            why=f"it was made with another {', '.join(different)}.",
            fix="--name NEW starts in another folder.",
        )


def _differences(folder: PlanFolder, asked: Mapping[str, JsonValue]) -> list[str]:
    try:
        before = read_json_object(folder.asked)
    except RunFolderError:
        return [folder.asked.name]
    return [key for key, value in asked.items() if before.get(key) != value]
