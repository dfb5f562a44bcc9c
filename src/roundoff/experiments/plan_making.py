"""One plan from its first step to its recipe: measure, propose, try, repair, write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from roundoff.experiments.bisection import Progress
from roundoff.experiments.engine import Place
from roundoff.experiments.plan_folder import PlanFolder
from roundoff.experiments.plan_measuring import Measurement, measuring_task
from roundoff.experiments.plan_options import Plan, PlanOptions, Tell
from roundoff.experiments.plan_proposal import propose
from roundoff.experiments.plan_recipe import check_base, formats_of, planned_recipe, recipe_text, rounded_ops
from roundoff.experiments.plan_repair import Verified, verified
from roundoff.experiments.plan_sites import Proposal
from roundoff.experiments.plan_text import evidence_lines
from roundoff.experiments.plan_workplace import Workplace
from roundoff.experiments.trial import Subject
from roundoff.precision import find_recipe
from roundoff.precision.recipe import Recipe
from roundoff.report.sensitivity_page import sensitivity_page
from roundoff.runs import to_json
from roundoff.runs.atomic import write_atomically
from roundoff.runs.plain_json import read_json_object

_NO_RECIPES = "the script never calls apply_recipe, so no recipe can be put into it from outside"


def make_plan(
    subject: Subject,
    options: PlanOptions,
    *,
    base: Path,
    name: str | None = None,
    recipe_file: Path | None = None,
    jobs: int = 1,
    on: Place = "pool",
    tell: Tell = lambda line: None,
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
    workplace = Workplace.open(subject, options, base=base, name=name, jobs=jobs, on=on, tell=tell)
    folder = workplace.folder
    measurement = _measured(workplace, options, formats=formats)
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
    answer: Verified | None = None
    if not_tried is None:
        answer = verified(
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
        measured_format=_called(base_recipe, proposal),
        proposal=proposal if answer is None else answer.proposal,
        recipe=build(proposal, False) if answer is None else answer.recipe,
        verified=answer,
        not_tried=not_tried,
        num_trials=verifier.num_trials,
        folder=folder.path,
        recipe_file=recipe_file or folder.recipe,
    )
    _write(plan, folder)
    return plan


def _measured(workplace: Workplace, options: PlanOptions, *, formats: tuple[str, ...]) -> Measurement:
    """Return the measured step, which an earlier try of this plan may have left."""
    folder = workplace.folder
    if folder.sensitivity.exists():
        return Measurement.from_object(read_json_object(folder.sensitivity))
    subject = workplace.trials.subject
    task = measuring_task(subject, formats=formats, step=options.measured_step, folder=folder.trial(0))
    measurement: Measurement = workplace.trials.run(task)
    write_atomically(folder.sensitivity, f"{to_json(measurement.to_object())}\n".encode())
    return measurement


def _why_not_tried(options: PlanOptions, measurement: Measurement) -> str | None:
    if not options.verify:
        return "as asked"
    return None if measurement.applies_recipes else _NO_RECIPES


def _called(base: Recipe, proposal: Proposal) -> str:
    """Return what most sites take, in the words of the recipe: operands are measured as another format."""
    return base.operands.forward if base.compute == "operands" else proposal.base_format


def _write(plan: Plan, folder: PlanFolder) -> None:
    recipe = replace(plan.recipe, description=f"planned for {plan.subject}")
    text = recipe_text(recipe, plan.proposal, evidence=evidence_lines(plan))
    write_atomically(plan.page_file, sensitivity_page(plan.measured).encode())
    folder.finish(text, answer=plan.to_object(), also=plan.recipe_file)


def _progress_line(progress: Progress) -> str:
    known = "" if progress.smallest is None else f"; enough are {', '.join(progress.smallest[:4]) or 'none'}"
    more = " ..." if progress.smallest is not None and len(progress.smallest) > 4 else ""
    return f"bisection, run {progress.num_runs}{known}{more}"
