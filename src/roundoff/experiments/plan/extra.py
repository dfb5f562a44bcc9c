"""Plans of other things than formats: the bits of saved activations, and fixed point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from roundoff.errors import PlanError
from roundoff.experiments.bisect.judgements import OutOfBudget
from roundoff.experiments.engine.task import Task
from roundoff.experiments.plan.answer import verification_lines
from roundoff.experiments.plan.fixed_bits import FixedPlan, fixed_task
from roundoff.experiments.plan.options import ActivationBudget, OnMessage, PlanOptions
from roundoff.experiments.plan.paused_training import PausedStep, pausing_training
from roundoff.experiments.plan.session import PlanSession
from roundoff.experiments.plan.verification import Verification, Verifier
from roundoff.experiments.trials.targets import TrainTarget
from roundoff.experiments.trials.trial import TrialTarget
from roundoff.precision import find_recipe, to_toml
from roundoff.precision.activations import (
    UNCOMPRESSED,
    ActivationSettings,
    choose_bits,
    compress_activations,
)
from roundoff.precision.recipe.recipe import Recipe
from roundoff.runs import JsonValue
from roundoff.train.config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPlan:
    """The bits of every site that saves activations, and the memory that they need."""

    bits: Mapping[str, int]
    """By site, outer sites first, as a recipe reads them."""
    bytes_before: int
    bytes_after: int
    budget_bytes: int

    def evidence(self) -> list[str]:
        """Return what the choice is based on, line by line."""
        counts = {bits: list(self.bits.values()).count(bits) for bits in sorted(set(self.bits.values()))}
        widths = ", ".join(f"{count} at {_bits_text(bits)}" for bits, count in counts.items())
        ratio = self.bytes_before / max(1, self.bytes_after)
        return [
            f"saved     {self.bytes_after} bytes instead of {self.bytes_before}, {ratio:.1f} times less; "
            f"the budget is {self.budget_bytes}",
            f"sites     {widths}; chosen by what compressing each alone does to the gradient",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationTask:
    """The request, as it is sent to the process that measures."""

    config: TrainConfig
    budget: ActivationBudget
    step: int


def activations_task(config: TrainConfig, budget: ActivationBudget, *, step: int, folder: Path) -> Task:
    """Return the task that chooses bits for a training, and returns an `ActivationPlan`."""
    argument = ActivationTask(config=config, budget=budget, step=step)
    return Task(name="activations", call=choose_activation_bits, argument=argument, log=folder / "log.txt")


def choose_activation_bits(task: ActivationTask) -> ActivationPlan:
    """Train for a few steps, then choose bits by what compressing each site does to the gradient of the next.

    Raises:
        RecipeError: even 2 bits everywhere exceed the budget.
    """
    with pausing_training(task.config, after=task.step) as paused:
        before = _count_saved_bytes(paused, UNCOMPRESSED)
        budget = task.budget.bytes_of(before)
        chosen = choose_bits(paused.model, paused.run, budget_bytes=budget)
        after = _count_saved_bytes(paused, chosen)
    return ActivationPlan(bits=dict(chosen), bytes_before=before, bytes_after=after, budget_bytes=budget)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraPlan:
    """A recipe, its evidence, and whether it trains."""

    subject: str
    recipe: Recipe
    evidence: tuple[str, ...]
    verification: Verification | None
    """None if it was not verified, or not completely."""
    is_good: bool
    recipe_file: Path
    folder: Path

    @property
    def text(self) -> str:
        """The plan as text, the verdict first."""
        return "\n".join([*self.lines, "", f"recipe    {self.recipe_file}"])

    @property
    def lines(self) -> list[str]:
        """The verdict and its evidence."""
        if self.verification is None:
            return [f"{self.recipe.name}, not verified.", *self.evidence]
        trains = "trains as well as fp32" if self.verification.is_good else "does not train as well as fp32"
        return [f"{self.recipe.name} {trains}.", *self.evidence, *verification_lines(self.verification)]

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        return {
            "subject": self.subject,
            "recipe": str(self.recipe_file),
            "folder": str(self.folder),
            "good": self.is_good,
            "evidence": list(self.evidence),
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
    session.folder.finish(_toml(plan), answer=plan.to_object(), recipe_file=plan.recipe_file)
    return plan


def _unsupported_error(training: TrialTarget, options: PlanOptions) -> PlanError:
    what, by_hand = "The bits of saved activations", "choose_bits, docs/compressed-activations.md"
    if options.activations is None:
        what, by_hand = "Fixed point", "start from recipe fixed, docs/fixed-point.md"
    return PlanError.explain(
        f"{what} cannot be planned for `{training.name}`.",
        why="one step must be run many times, which only works for settings of roundoff train.",
        fix=f"roundoff plan ... train OPTIONS; for your own model: {by_hand}",
    )


def _choice_task(training: TrainTarget, options: PlanOptions, session: PlanSession) -> Task:
    """Return the task that measures one step and chooses."""
    config, step, folder = training.config, options.measured_step, session.folder.trial(0)
    if options.activations is not None:
        return activations_task(config, options.activations, step=step, folder=folder)
    assert options.fixed_bits is not None
    return fixed_task(config, bits=options.fixed_bits, target=options.target, step=step, folder=folder)


def _verify_recipe(recipe: Recipe, options: PlanOptions, session: PlanSession) -> Verification | None:
    if not options.verify:
        return None
    try:
        return Verifier.for_session(session, options).verify(recipe)
    except OutOfBudget:
        return None


def _toml(plan: ExtraPlan) -> str:
    lines = [f"Planned by roundoff for: {plan.subject}", *plan.lines]
    return "".join(f"# {line}\n" for line in lines) + "\n" + to_toml(plan.recipe)
