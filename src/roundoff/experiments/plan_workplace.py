"""Where a plan is made: its folder, the trials in it, and who judges them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from roundoff.experiments.bisect_folder import BisectFolder
from roundoff.experiments.engine import Place
from roundoff.experiments.judgements import Budget
from roundoff.experiments.judges import final_loss
from roundoff.experiments.plan_folder import PlanFolder, plan_folder
from roundoff.experiments.plan_options import PlanOptions, Tell
from roundoff.experiments.plan_trials import Verifier
from roundoff.experiments.subject_train import TrainSubject
from roundoff.experiments.trial import Subject
from roundoff.experiments.trials import KeptTrial, Trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """The folder of a plan, and the trials that are made for it."""

    folder: PlanFolder
    trials: Trials

    @classmethod
    def open(
        cls,
        subject: Subject,
        options: PlanOptions,
        *,
        base: Path,
        name: str | None,
        jobs: int,
        on: Place,
        tell: Tell,
    ) -> Self:
        """Make the folder, or go on in the one of a plan that was interrupted."""
        folder = plan_folder(options.asked(subject.name, subject.fingerprint), base=base, name=name)
        tell(f"plan of `{subject.name}` in {folder.path}")
        # A bisection keeps its trials in the same way.
        kept = BisectFolder(path=folder.path)
        planned = 2 * options.seeds if options.verify else 0

        def told(trial: KeptTrial) -> None:
            left = max(0, planned - trial.number) * trials.seconds_each / max(1, jobs)
            tell(_trial_line(trial, planned=planned, seconds_left=left))

        trials = Trials(subject, kept, jobs=jobs, on=on, on_trial=told)
        return cls(folder=folder, trials=trials)

    def verifier(self, options: PlanOptions) -> Verifier:
        """Return who judges recipes here."""
        subject = self.trials.subject
        first = subject.config.seed if isinstance(subject, TrainSubject) else 0
        return Verifier(
            try_settings=self.trials.all,
            folder=self.folder,
            seeds=tuple(range(first, first + options.seeds)),
            num_steps=options.num_steps,
            budget=Budget(max_runs=options.max_runs, deadline_seconds=options.max_seconds),
        )


def _trial_line(trial: KeptTrial, *, planned: int, seconds_left: float) -> str:
    """Write a training that has ended as one line; those beyond the planned ones are repairs, of unknown number."""
    recipe = "fp32" if trial.setting.recipe == "fp32" else f"recipe {Path(trial.setting.recipe or '').stem}"
    loss = final_loss(trial.result)
    ended = f"loss {loss:.4g}" if loss is not None else f"exit code {trial.result.exit_code}"
    place = f"{trial.number}/{planned}" if trial.number <= planned else f"{trial.number}"
    left = f"; about {seconds_left:.0f} s left" if seconds_left >= 1 else ""
    return f"[{place}] {recipe}, seed {trial.setting.seed}: {ended} after {trial.seconds:.1f} s{left}"
