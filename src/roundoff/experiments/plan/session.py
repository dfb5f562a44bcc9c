"""Where a plan is made: its folder, and the trials that are run for it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from roundoff.errors import PlanError, RoundoffError
from roundoff.experiments.experiment_folder import ExperimentFolder
from roundoff.experiments.plan.options import OnMessage, PlanOptions
from roundoff.experiments.trials.judges import final_loss
from roundoff.experiments.trials.runner import FinishedTrial, TrialRunner
from roundoff.experiments.trials.trial import TrialTarget
from roundoff.runs import JsonValue, to_json
from roundoff.runs.files.atomic import write_atomically


class PlanFolder(ExperimentFolder):
    """The folder of a plan."""

    kind: ClassVar[str] = "plan"
    noun: ClassVar[str] = "plan"
    error: ClassVar[type[RoundoffError]] = PlanError

    @property
    def sensitivity(self) -> Path:
        """The measured step."""
        return self.path / "sensitivity.json"

    @property
    def recipe(self) -> Path:
        """The recipe to use."""
        return self.path / "recipe.toml"

    def judgements(self, number: int) -> Path:
        """Return the file of the judgements of the nth repair, which is a bisection."""
        return self.path / f"repair-{number}.jsonl"

    def write_trial_recipe(self, text: str) -> Path:
        """Write a recipe for a trial, and return its file; equal texts have the same file."""
        path = self.path / "recipes" / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.toml"
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, text.encode())
        return path

    def finish(self, recipe: str, *, answer: dict[str, JsonValue], recipe_file: Path) -> None:
        """Write the recipe, here and to `recipe_file`, and the answer, which ends the plan."""
        for path in dict.fromkeys((self.recipe, recipe_file)):
            try:
                write_atomically(path, recipe.encode())
            except OSError as error:
                raise PlanError.explain(
                    f"'{path}' cannot be written.", why=f"{error.strerror}.", fix=f"the recipe is in '{self.recipe}'."
                ) from error
        write_atomically(self.answer, f"{to_json(answer, indent=1)}\n".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSession:
    """The folder of a plan, and the trials that are run for it."""

    folder: PlanFolder
    trials: TrialRunner
    recipe_file: Path
    """Where the recipe goes."""

    @classmethod
    def open(cls, training: TrialTarget, options: PlanOptions, *, on_message: OnMessage) -> Self:
        """Create the folder, or resume in the one of an interrupted plan."""
        request = options.request(training.name, training.fingerprint)
        folder = PlanFolder.open(request, base=options.runs, name=options.name)
        on_message(f"plan of `{training.name}` in {folder.path}")
        planned = 2 * options.seeds if options.verify else 0

        def on_trial(trial: FinishedTrial) -> None:
            left = max(0, planned - trial.number) * trials.seconds_each / max(1, options.jobs)
            on_message(_trial_line(trial, planned=planned, seconds_left=left))

        trials = TrialRunner(training, folder, jobs=options.jobs, on=options.on, on_trial=on_trial)
        return cls(folder=folder, trials=trials, recipe_file=options.recipe_file or folder.recipe)


def _trial_line(trial: FinishedTrial, *, planned: int, seconds_left: float) -> str:
    """Return the line of a finished training; those beyond the planned ones are repairs, of unknown number."""
    recipe = "fp32" if trial.setting.recipe == "fp32" else f"recipe {Path(trial.setting.recipe or '').stem}"
    loss = final_loss(trial.result)
    ended = f"loss {loss:.4g}" if loss is not None else f"exit code {trial.result.exit_code}"
    place = f"{trial.number}/{planned}" if trial.number <= planned else f"{trial.number}"
    left = f"; about {seconds_left:.0f} s left" if seconds_left >= 1 else ""
    return f"[{place}] {recipe}, seed {trial.setting.seed}: {ended} after {trial.seconds:.1f} s{left}"
