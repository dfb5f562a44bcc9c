"""A plan from its target to its recipe: measure, propose, verify, repair, write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from roundoff.errors import PlanError
from roundoff.experiments.bisect.judgements import OutOfBudget
from roundoff.experiments.bisect.smallest import SearchProgress
from roundoff.experiments.engine.process_pool import Task
from roundoff.experiments.plan.fixed_bits import FixedPlan, PausedStep, measure_and_choose_fixed, pausing_training
from roundoff.experiments.plan.plan_answer import LABEL_WIDTH, Plan, comment_lines, evidence_lines, verification_facts
from roundoff.experiments.plan.plan_session import ActivationBudget, OnMessage, PlanFolder, PlanOptions, PlanSession
from roundoff.experiments.plan.proposal import propose
from roundoff.experiments.plan.proposal_recipe import check_base, formats_of, planned_recipe, recipe_text, rounded_ops
from roundoff.experiments.plan.site_choices import Proposal
from roundoff.experiments.plan.verification import Verification, VerifiedProposal, Verifier, verify_and_repair
from roundoff.experiments.trials.measurement import Measurement, measurement_task
from roundoff.experiments.trials.targets import TrainTarget
from roundoff.experiments.trials.trial import TrialTarget
from roundoff.files import write_atomically
from roundoff.precision import find_recipe, to_toml
from roundoff.precision.activations import (
    UNCOMPRESSED,
    ActivationSettings,
    choose_bits,
    compress_activations,
)
from roundoff.precision.recipe.recipe import Recipe
from roundoff.report.parts import Facts, Sentence, to_text
from roundoff.report.precision_loss import sensitivity_page
from roundoff.runs import JsonValue, to_json
from roundoff.runs.files.plain_json import read_json_object
from roundoff.train.config import TrainConfig

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
        layers_only=base_recipe.compute == "operands" and base_recipe.operands.layers_only,
    )
    on_message(
        f"measured step {measurement.sensitivity.step}: {len(proposal.wide)} of {len(proposal.sites)} sites are wide"
    )

    def build(of: Proposal, safe: bool) -> Recipe:
        return planned_recipe(of, base_recipe, name=session.recipe_file.stem, safe=safe)

    verifier = Verifier.for_session(session, options)
    not_tried = None if measurement.applies_recipes else _NO_RECIPES
    not_tried = not_tried if options.verify else "as requested"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraPlan:
    """A recipe, its evidence, and whether it trains."""

    subject: str
    recipe: Recipe
    evidence: tuple[tuple[str, str], ...]
    """Facts with their labels."""
    verification: Verification | None
    """None if it was not verified, or not completely."""
    is_good: bool
    recipe_file: Path
    folder: Path

    @property
    def text(self) -> str:
        """The plan as text, the verdict first."""
        return to_text(
            [
                Sentence(self.verdict),
                Facts(self.facts, label_width=LABEL_WIDTH),
                Facts([("recipe", str(self.recipe_file))], label_width=LABEL_WIDTH, overflow="keep", is_apart=True),
            ]
        )

    @property
    def verdict(self) -> str:
        """Whether the recipe trains."""
        if self.verification is None:
            return f"{self.recipe.name}, not verified."
        trains = "trains as well as fp32" if self.verification.is_good else "does not train as well as fp32"
        return f"{self.recipe.name} {trains}."

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The evidence, and the results of the verification."""
        return [*self.evidence, *verification_facts(self.verification)]

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        return {
            "subject": self.subject,
            "recipe": str(self.recipe_file),
            "folder": str(self.folder),
            "good": self.is_good,
            "evidence": [f"{label:<{LABEL_WIDTH}}{text}" for label, text in self.evidence],
            "verification": None if self.verification is None else self.verification.to_object(),
        }


def make_extra_plan(training: TrialTarget, options: PlanOptions, *, on_message: OnMessage) -> ExtraPlan:
    """Choose from one measured step, verify the recipe against fp32, and write it.

    Raises:
        PlanError: the training is a script, or fails in fp32.
    """
    if not isinstance(training, TrainTarget):
        raise _unsupported_error(training, options)
    session = PlanSession.open(training, options, on_message=on_message)
    chosen: ActivationPlan | FixedPlan = session.trials.run_task(_choice_task(training, options, session))
    name = session.recipe_file.stem
    if isinstance(chosen, ActivationPlan):
        recipe = replace(with_activations(find_recipe(options.base_name), chosen), name=name)
    else:
        recipe = chosen.recipe(name=name)
    on_message("chosen; verifying it" if options.verify else "chosen")
    verification = _verify_recipe(recipe, options, session)
    plan = ExtraPlan(
        subject=training.name,
        recipe=replace(recipe, description=f"planned for {training.name}"),
        evidence=tuple(chosen.evidence()),
        verification=verification,
        is_good=not options.verify or (verification is not None and verification.is_good),
        recipe_file=session.recipe_file,
        folder=session.folder.path,
    )
    lines = [f"Planned by roundoff for: {plan.subject}", plan.verdict, *comment_lines(plan.facts)]
    comments = "".join(f"# {line}\n" for line in lines)
    toml = f"{comments}\n{to_toml(plan.recipe)}"
    session.folder.finish(toml, answer=plan.to_object(), recipe_file=plan.recipe_file)
    return plan


def _unsupported_error(training: TrialTarget, options: PlanOptions) -> PlanError:
    what, by_hand = "The bits of saved activations", "choose_bits, roundoff docs compressed-activations"
    if options.activations is None:
        what, by_hand = "Fixed point", "start from recipe fixed, roundoff docs fixed-point"
    return PlanError.explain(
        f"{what} cannot be planned for `{training.name}`.",
        why="one step must be run many times, which only works for settings of roundoff train.",
        fix=f"roundoff plan ... train OPTIONS; for your own model: {by_hand}",
    )


def _choice_task(training: TrainTarget, options: PlanOptions, session: PlanSession) -> Task:
    """Return the task that measures one step and chooses."""
    step, log = options.measured_step, session.folder.trial(0) / "log.txt"
    choose: Callable[[TrainConfig], ActivationPlan | FixedPlan]
    if options.activations is not None:
        choose = partial(choose_activation_bits, budget=options.activations, step=step)
    else:
        assert options.fixed_bits is not None
        choose = partial(measure_and_choose_fixed, bits=options.fixed_bits, target=options.target, step=step)
    return Task(name="choosing", call=choose, argument=training.config, log=log)


def _verify_recipe(recipe: Recipe, options: PlanOptions, session: PlanSession) -> Verification | None:
    if not options.verify:
        return None
    try:
        return Verifier.for_session(session, options).verify(recipe)
    except OutOfBudget:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPlan:
    """The bits of every site that saves activations, and the memory that they need."""

    bits: Mapping[str, int]
    """By site, outer sites first, as a recipe reads them."""
    bytes_before: int
    bytes_after: int
    budget_bytes: int

    def evidence(self) -> list[tuple[str, str]]:
        """Return what the choice is based on, as facts with labels."""
        counts = {bits: list(self.bits.values()).count(bits) for bits in sorted(set(self.bits.values()))}
        widths = ", ".join(f"{count} at {_bits_text(bits)}" for bits, count in counts.items())
        ratio = self.bytes_before / max(1, self.bytes_after)
        return [
            (
                "saved",
                f"{self.bytes_after} bytes instead of {self.bytes_before}, {ratio:.1f} times less; "
                f"the budget is {self.budget_bytes}",
            ),
            ("sites", f"{widths}; chosen by what compressing each alone does to the gradient"),
        ]


def choose_activation_bits(config: TrainConfig, *, budget: ActivationBudget, step: int) -> ActivationPlan:
    """Train for a few steps, then choose bits by what compressing each site does to the gradient of the next.

    Raises:
        RecipeError: even 2 bits everywhere exceed the budget.
    """
    with pausing_training(config, after=step) as paused:
        before = _count_saved_bytes(paused, UNCOMPRESSED)
        budget_bytes = budget.bytes_of(before)
        chosen = choose_bits(paused.model, paused.run, budget_bytes=budget_bytes)
        after = _count_saved_bytes(paused, chosen)
    return ActivationPlan(bits=dict(chosen), bytes_before=before, bytes_after=after, budget_bytes=budget_bytes)


def with_activations(recipe: Recipe, plan: ActivationPlan) -> Recipe:
    """Return the recipe with the bits of the plan."""
    return replace(recipe, activation_bits=0, activation_sites=dict(plan.bits))


def _count_saved_bytes(paused: PausedStep, bits: int | Mapping[str, int]) -> int:
    with compress_activations(paused.model, ActivationSettings(bits=bits)) as compressed:
        paused.run()
        paused.model.zero_grad()
        return compressed.report().bytes_after


def _bits_text(bits: int) -> str:
    return "full width" if bits == UNCOMPRESSED else f"{bits} bits"
