"""Plans of what a recipe adds to a model besides formats: compressed activations, and fixed point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from roundoff.errors import PlanError
from roundoff.experiments.bisect.judgements import OutOfBudget
from roundoff.experiments.engine.scheduler import Backend
from roundoff.experiments.engine.task import Task
from roundoff.experiments.plan.answer import verification_lines
from roundoff.experiments.plan.experiment import PlanSession
from roundoff.experiments.plan.fixed_bits import FixedPlan, fixed_task
from roundoff.experiments.plan.options import OnMessage, PlanOptions
from roundoff.experiments.plan.paused_training import PausedStep, pausing_training
from roundoff.experiments.plan.verification import Verification
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

# == Bits for the saved activations of every site, under a memory budget.


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBudget:
    """How much a forward may keep for its backward: so many bytes, or a share of what it keeps uncompressed."""

    num_bytes: int | None = None
    share: float | None = None

    def bytes_of(self, uncompressed: int) -> int:
        """Return the budget in bytes."""
        return self.num_bytes if self.num_bytes is not None else int((self.share or 0.0) * uncompressed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPlan:
    """Bits of every site that saves something, and what that takes."""

    bits: Mapping[str, int]
    """By site, outer sites first, as a recipe reads them."""
    bytes_before: int
    bytes_after: int
    budget_bytes: int

    def evidence(self) -> list[str]:
        """Say what it rests on."""
        counts = {bits: list(self.bits.values()).count(bits) for bits in sorted(set(self.bits.values()))}
        widths = ", ".join(f"{count} at {_bits_text(bits)}" for bits, count in counts.items())
        ratio = self.bytes_before / max(1, self.bytes_after)
        return [
            f"saved     {self.bytes_after} bytes of {self.bytes_before}, {ratio:.1f} times less; "
            f"the budget is {self.budget_bytes}",
            f"sites     {widths}; chosen by what compressing each alone does to the gradient",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationTask:
    """What is sent to the process that measures."""

    config: TrainConfig
    budget: ActivationBudget
    step: int


def activations_task(config: TrainConfig, budget: ActivationBudget, *, step: int, folder: Path) -> Task:
    """Return the call that chooses bits for a training, and whose value is an `ActivationPlan`."""
    argument = ActivationTask(config=config, budget=budget, step=step)
    return Task(name="activations", call=choose_activation_bits, argument=argument, log=folder / "log.txt")


def choose_activation_bits(task: ActivationTask) -> ActivationPlan:
    """Train for a few steps, then choose bits by what compressing each site does to the gradient of the next.

    Raises:
        RecipeError: not even 2 bits everywhere fit the budget.
    """
    with pausing_training(task.config, after=task.step) as standing:
        before = _count_saved_bytes(standing, UNCOMPRESSED)
        budget = task.budget.bytes_of(before)
        chosen = choose_bits(standing.model, standing.run, budget_bytes=budget)
        after = _count_saved_bytes(standing, chosen)
    return ActivationPlan(bits=dict(chosen), bytes_before=before, bytes_after=after, budget_bytes=budget)


def with_activations(recipe: Recipe, plan: ActivationPlan) -> Recipe:
    """Return the recipe with the bits of the plan."""
    return replace(recipe, activation_bits=0, activation_sites=dict(plan.bits))


def _count_saved_bytes(standing: PausedStep, bits: int | Mapping[str, int]) -> int:
    with compress_activations(standing.model, ActivationSettings(bits=bits)) as compressed:
        standing.run()
        standing.model.zero_grad()
        return compressed.report().bytes_after


def _bits_text(bits: int) -> str:
    return "full width" if bits == UNCOMPRESSED else f"{bits} bits"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraPlan:
    """A recipe, what it rests on, and whether it trains."""

    subject: str
    recipe: Recipe
    evidence: tuple[str, ...]
    verification: Verification | None
    """None if nothing was tried, or not to the end."""
    is_good: bool
    recipe_file: Path
    folder: Path

    @property
    def text(self) -> str:
        """The plan for people, the verdict first."""
        return "\n".join([*self.lines, "", f"recipe    {self.recipe_file}"])

    @property
    def lines(self) -> list[str]:
        """The verdict, and what it rests on."""
        if self.verification is None:
            return [f"{self.recipe.name}, not tried.", *self.evidence]
        trains = "trains as fp32 does" if self.verification.is_good else "does not train as fp32 does"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraRequest:
    """What is planned: bits of saved activations under a budget, or fixed point of so many bits."""

    activations: ActivationBudget | None = None
    fixed_bits: int | None = None

    @property
    def asked(self) -> str:
        """What was asked for, in words, which tells plans apart."""
        if self.activations is None:
            return f"fixed {self.fixed_bits}"
        share, num_bytes = self.activations.share, self.activations.num_bytes
        return f"activations {num_bytes} bytes" if share is None else f"activations {100 * share:g}%"

    @property
    def called(self) -> str:
        """What is planned, for people."""
        return "the bits of saved activations" if self.activations is not None else "fixed point"

    @property
    def by_hand(self) -> str:
        """What to do with a training that cannot be planned."""
        if self.activations is not None:
            return "choose_bits, docs/compressed-activations.md"
        return "start from recipe fixed, docs/fixed-point.md"

    def task(self, config: TrainConfig, options: PlanOptions, folder: Path) -> Task:
        """Return the call that measures and chooses."""
        if self.activations is not None:
            return activations_task(config, self.activations, step=options.measured_step, folder=folder)
        assert self.fixed_bits is not None
        return fixed_task(
            config, bits=self.fixed_bits, target=options.target, step=options.measured_step, folder=folder
        )

    def recipe(self, chosen: ActivationPlan | FixedPlan, base: Recipe, *, name: str) -> Recipe:
        """Return the recipe of what was chosen."""
        if isinstance(chosen, ActivationPlan):
            return replace(with_activations(base, chosen), name=name)
        return chosen.recipe(name=name)


def make_extra_plan(
    subject: TrialTarget,
    extra: ExtraRequest,
    options: PlanOptions,
    *,
    base: Path,
    name: str | None = None,
    recipe_file: Path | None = None,
    jobs: int = 1,
    on: Backend = "pool",
    tell: OnMessage = lambda line: None,
) -> ExtraPlan:
    """Choose by what one step shows, try the recipe beside fp32, and write it down.

    Raises:
        PlanError: the training is a script, or fails in fp32.
    """
    if not isinstance(subject, TrainTarget):
        raise PlanError.explain(
            f"Of `{subject.name}` {extra.called} cannot be planned.",
            why="one step has to be run again and again, which only settings of roundoff train allow.",
            fix=f"roundoff plan ... train OPTIONS; for a model of yours: {extra.by_hand}",
        )
    workplace = PlanSession.open(subject, options, base=base, name=name, jobs=jobs, on=on, tell=tell)
    folder = workplace.folder
    chosen: ActivationPlan | FixedPlan = workplace.trials.run(extra.task(subject.config, options, folder.trial(0)))
    file = recipe_file or folder.recipe
    recipe = extra.recipe(chosen, find_recipe(options.base), name=file.stem)
    tell("chosen; now it is tried" if options.verify else "chosen")
    verification = _verify_recipe(recipe, options, workplace)
    plan = ExtraPlan(
        subject=subject.name,
        recipe=replace(recipe, description=f"planned for {subject.name}"),
        evidence=tuple(chosen.evidence()),
        verification=verification,
        is_good=not options.verify or (verification is not None and verification.is_good),
        recipe_file=file,
        folder=folder.path,
    )
    folder.finish(_toml(plan), answer=plan.to_object(), also=file)
    return plan


def _verify_recipe(recipe: Recipe, options: PlanOptions, workplace: PlanSession) -> Verification | None:
    if not options.verify:
        return None
    try:
        return workplace.verifier(options).verify(recipe)
    except OutOfBudget:
        return None


def _toml(plan: ExtraPlan) -> str:
    lines = [f"Planned by roundoff for: {plan.subject}", *plan.lines]
    return "".join(f"# {line}\n" for line in lines) + "\n" + to_toml(plan.recipe)
