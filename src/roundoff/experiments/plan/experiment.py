"""One plan from its first step to its recipe: measure, propose, try, repair, write."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from roundoff.experiments.bisect.folder import BisectFolder
from roundoff.experiments.bisect.judgements import Budget
from roundoff.experiments.bisect.smallest import SearchProgress
from roundoff.experiments.engine.scheduler import Backend
from roundoff.experiments.plan.answer import evidence_lines
from roundoff.experiments.plan.folder import PlanFolder, open_plan_folder
from roundoff.experiments.plan.options import OnMessage, Plan, PlanOptions
from roundoff.experiments.plan.proposal import propose
from roundoff.experiments.plan.proposal_recipe import check_base, formats_of, planned_recipe, recipe_text, rounded_ops
from roundoff.experiments.plan.site_formats import Proposal
from roundoff.experiments.plan.verification import VerifiedProposal, Verifier, verify_and_repair
from roundoff.experiments.trials.judges import final_loss
from roundoff.experiments.trials.measurement import Measurement, measurement_task
from roundoff.experiments.trials.runner import FinishedTrial, TrialRunner
from roundoff.experiments.trials.targets import TrainTarget
from roundoff.experiments.trials.trial import TrialTarget
from roundoff.precision import find_recipe
from roundoff.precision.recipe.recipe import Recipe
from roundoff.report.precision_loss import sensitivity_page
from roundoff.runs import to_json
from roundoff.runs.files.atomic import write_atomically
from roundoff.runs.files.plain_json import read_json_object

# == Where a plan is made: its folder, the trials in it, and who judges them.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSession:
    """The folder of a plan, and the trials that are made for it."""

    folder: PlanFolder
    trials: TrialRunner

    @classmethod
    def open(
        cls,
        subject: TrialTarget,
        options: PlanOptions,
        *,
        base: Path,
        name: str | None,
        jobs: int,
        on: Backend,
        tell: OnMessage,
    ) -> Self:
        """Make the folder, or go on in the one of a plan that was interrupted."""
        folder = open_plan_folder(options.asked(subject.name, subject.fingerprint), base=base, name=name)
        tell(f"plan of `{subject.name}` in {folder.path}")
        # A bisection keeps its trials in the same way.
        kept = BisectFolder(path=folder.path)
        planned = 2 * options.seeds if options.verify else 0

        def told(trial: FinishedTrial) -> None:
            left = max(0, planned - trial.number) * trials.seconds_each / max(1, jobs)
            tell(_trial_line(trial, planned=planned, seconds_left=left))

        trials = TrialRunner(subject, kept, jobs=jobs, on=on, on_trial=told)
        return cls(folder=folder, trials=trials)

    def verifier(self, options: PlanOptions) -> Verifier:
        """Return who judges recipes here."""
        subject = self.trials.subject
        first = subject.config.seed if isinstance(subject, TrainTarget) else 0
        return Verifier(
            try_settings=self.trials.all,
            folder=self.folder,
            seeds=tuple(range(first, first + options.seeds)),
            num_steps=options.num_steps,
            budget=Budget(max_runs=options.max_runs, deadline_seconds=options.max_seconds),
        )


def _trial_line(trial: FinishedTrial, *, planned: int, seconds_left: float) -> str:
    """Write a training that has ended as one line; those beyond the planned ones are repairs, of unknown number."""
    recipe = "fp32" if trial.setting.recipe == "fp32" else f"recipe {Path(trial.setting.recipe or '').stem}"
    loss = final_loss(trial.result)
    ended = f"loss {loss:.4g}" if loss is not None else f"exit code {trial.result.exit_code}"
    place = f"{trial.number}/{planned}" if trial.number <= planned else f"{trial.number}"
    left = f"; about {seconds_left:.0f} s left" if seconds_left >= 1 else ""
    return f"[{place}] {recipe}, seed {trial.setting.seed}: {ended} after {trial.seconds:.1f} s{left}"


_NO_RECIPES = "the script never calls apply_recipe, so no recipe can be put into it from outside"


def make_plan(
    subject: TrialTarget,
    options: PlanOptions,
    *,
    base: Path,
    name: str | None = None,
    recipe_file: Path | None = None,
    jobs: int = 1,
    on: Backend = "pool",
    tell: OnMessage = lambda line: None,
) -> Plan:
    """Measure one step of a training, propose a recipe, try it, repair it, and write it down.

    Everything goes into the folder `base`/`name`. A plan that was interrupted goes on there, and repeats no trial.

    Raises:
        PlanError: the plan cannot be as it was asked for, or the training fails in fp32.
        TrialError: a trial died.
    """
    base_recipe = find_recipe(options.base)
    check_base(base_recipe)
    formats = options.formats or formats_of(base_recipe)
    workplace = PlanSession.open(subject, options, base=base, name=name, jobs=jobs, on=on, tell=tell)
    folder = workplace.folder
    measurement = measure_step(workplace, options, formats=formats)
    proposal = propose(
        measurement.sensitivity,
        formats=formats,
        target=options.target,
        modules_only=options.modules_only or base_recipe.compute == "autocast",
        is_scaled=base_recipe.loss_scale.may_skip,
        only_ops=rounded_ops(base_recipe),
    )
    tell(f"measured step {measurement.sensitivity.step}: {len(proposal.wide)} of {len(proposal.sites)} sites are wide")

    def build(of: Proposal, safe: bool) -> Recipe:
        return planned_recipe(of, base_recipe, name=(recipe_file or folder.recipe).stem, safe=safe)

    verifier = workplace.verifier(options)
    not_tried = _why_not_tried(options, measurement)
    answer: VerifiedProposal | None = None
    if not_tried is None:
        answer = verify_and_repair(
            proposal,
            measured=measurement.sensitivity,
            build=build,
            verifier=verifier,
            on_progress=lambda progress: tell(_progress_line(progress)),
        )
    plan = Plan(
        subject=subject.name,
        options=options,
        measured=measurement.sensitivity,
        measured_format=_most_common_format(base_recipe, proposal),
        proposal=proposal if answer is None else answer.proposal,
        recipe=build(proposal, False) if answer is None else answer.recipe,
        verified=answer,
        not_tried=not_tried,
        num_trials=verifier.num_trials,
        folder=folder.path,
        recipe_file=recipe_file or folder.recipe,
    )
    _write_plan(plan, folder)
    return plan


def measure_step(workplace: PlanSession, options: PlanOptions, *, formats: tuple[str, ...]) -> Measurement:
    """Return the measured step, which an earlier try of this plan may have left."""
    folder = workplace.folder
    if folder.sensitivity.exists():
        return Measurement.from_object(read_json_object(folder.sensitivity))
    subject = workplace.trials.subject
    task = measurement_task(subject, formats=formats, step=options.measured_step, folder=folder.trial(0))
    measurement: Measurement = workplace.trials.run(task)
    write_atomically(folder.sensitivity, f"{to_json(measurement.to_object())}\n".encode())
    return measurement


def _why_not_tried(options: PlanOptions, measurement: Measurement) -> str | None:
    if not options.verify:
        return "as asked"
    return None if measurement.applies_recipes else _NO_RECIPES


def _most_common_format(base: Recipe, proposal: Proposal) -> str:
    """Return what most sites take, in the words of the recipe: operands are measured as another format."""
    return base.operands.forward if base.compute == "operands" else proposal.base_format


def _write_plan(plan: Plan, folder: PlanFolder) -> None:
    recipe = replace(plan.recipe, description=f"planned for {plan.subject}")
    text = recipe_text(recipe, plan.proposal, evidence=evidence_lines(plan))
    write_atomically(plan.page_file, sensitivity_page(plan.measured).encode())
    folder.finish(text, answer=plan.to_object(), also=plan.recipe_file)


def _progress_line(progress: SearchProgress) -> str:
    known = "" if progress.smallest is None else f"; enough are {', '.join(progress.smallest[:4]) or 'none'}"
    more = " ..." if progress.smallest is not None and len(progress.smallest) > 4 else ""
    return f"bisection, run {progress.num_runs}{known}{more}"
