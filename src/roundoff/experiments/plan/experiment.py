"""A plan from its target to its recipe: measure, propose, verify, repair, write."""

from __future__ import annotations

from dataclasses import replace

from roundoff.experiments.bisect.smallest import SearchProgress
from roundoff.experiments.plan.answer import Plan, evidence_lines
from roundoff.experiments.plan.extra import ExtraPlan, make_extra_plan
from roundoff.experiments.plan.options import OnMessage, PlanOptions
from roundoff.experiments.plan.proposal import propose
from roundoff.experiments.plan.proposal_recipe import check_base, formats_of, planned_recipe, recipe_text, rounded_ops
from roundoff.experiments.plan.session import PlanFolder, PlanSession
from roundoff.experiments.plan.site_formats import Proposal
from roundoff.experiments.plan.verification import VerifiedProposal, Verifier, verify_and_repair
from roundoff.experiments.trials.measurement import Measurement, measurement_task
from roundoff.experiments.trials.trial import TrialTarget
from roundoff.precision import find_recipe
from roundoff.precision.recipe.recipe import Recipe
from roundoff.report.precision_loss import sensitivity_page
from roundoff.runs import to_json
from roundoff.runs.files.atomic import write_atomically
from roundoff.runs.files.plain_json import read_json_object

_NO_RECIPES = "the script never calls apply_recipe, so no recipe can be applied to it"


def make_requested_plan(
    training: TrialTarget, options: PlanOptions, *, on_message: OnMessage = lambda line: None
) -> Plan | ExtraPlan:
    """Make the plan that the options request: of formats, of saved activations, or of fixed point.

    Everything is stored in a folder, `plan-1`, ..., in which an interrupted plan resumes without repeating a trial.

    Raises:
        PlanError: the plan is not possible as requested, or the training fails in fp32.
        TrialError: a trial failed.
    """
    if options.extra:
        return make_extra_plan(training, options, on_message=on_message)
    return make_plan(training, options, on_message=on_message)


def make_plan(training: TrialTarget, options: PlanOptions, *, on_message: OnMessage = lambda line: None) -> Plan:
    """Measure one step of a training, propose a recipe, verify it, repair it, and write it."""
    base_recipe = find_recipe(options.base_name)
    check_base(base_recipe)
    formats = options.formats or formats_of(base_recipe)
    session = PlanSession.open(training, options, on_message=on_message)
    measurement = measure_step(session, options, formats=formats)
    proposal = propose(
        measurement.sensitivity,
        formats=formats,
        target=options.target,
        modules_only=options.modules_only or base_recipe.compute == "autocast",
        is_scaled=base_recipe.loss_scale.may_skip,
        only_ops=rounded_ops(base_recipe),
    )
    on_message(
        f"measured step {measurement.sensitivity.step}: {len(proposal.wide)} of {len(proposal.sites)} sites are wide"
    )

    def build(of: Proposal, safe: bool) -> Recipe:
        return planned_recipe(of, base_recipe, name=session.recipe_file.stem, safe=safe)

    verifier = Verifier.for_session(session, options)
    not_tried = _why_not_tried(options, measurement)
    answer: VerifiedProposal | None = None
    if not_tried is None:
        answer = verify_and_repair(
            proposal,
            measured=measurement.sensitivity,
            build=build,
            verifier=verifier,
            on_progress=lambda progress: on_message(_progress_line(progress)),
        )
    plan = Plan(
        subject=training.name,
        options=options,
        measured=measurement.sensitivity,
        measured_format=_most_common_format(base_recipe, proposal),
        proposal=proposal if answer is None else answer.proposal,
        recipe=build(proposal, False) if answer is None else answer.recipe,
        verified=answer,
        not_tried=not_tried,
        num_trials=verifier.num_trials,
        folder=session.folder.path,
        recipe_file=session.recipe_file,
    )
    _write_plan(plan, session.folder)
    return plan


def measure_step(session: PlanSession, options: PlanOptions, *, formats: tuple[str, ...]) -> Measurement:
    """Measure one step of the training, or read it if an interrupted plan has already measured it."""
    folder = session.folder
    if folder.sensitivity.exists():
        return Measurement.from_object(read_json_object(folder.sensitivity))
    task = measurement_task(session.trials.target, formats=formats, step=options.measured_step, folder=folder.trial(0))
    measurement: Measurement = session.trials.run_task(task)
    write_atomically(folder.sensitivity, f"{to_json(measurement.to_object())}\n".encode())
    return measurement


def _why_not_tried(options: PlanOptions, measurement: Measurement) -> str | None:
    if not options.verify:
        return "as requested"
    return None if measurement.applies_recipes else _NO_RECIPES


def _most_common_format(base: Recipe, proposal: Proposal) -> str:
    """Return the format of most sites as the recipe names it: operands are measured as another format."""
    return base.operands.forward if base.compute == "operands" else proposal.base_format


def _write_plan(plan: Plan, folder: PlanFolder) -> None:
    recipe = replace(plan.recipe, description=f"planned for {plan.subject}")
    text = recipe_text(recipe, plan.proposal, evidence=evidence_lines(plan))
    write_atomically(plan.page_file, sensitivity_page(plan.measured).encode())
    folder.finish(text, answer=plan.to_object(), recipe_file=plan.recipe_file)


def _progress_line(progress: SearchProgress) -> str:
    known = "" if progress.smallest is None else f"; sufficient: {', '.join(progress.smallest[:4]) or 'none'}"
    more = " ..." if progress.smallest is not None and len(progress.smallest) > 4 else ""
    return f"bisection, run {progress.num_runs}{known}{more}"
