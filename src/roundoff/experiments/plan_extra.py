"""Plans of what a recipe adds to a model besides formats: compressed activations, and fixed point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from roundoff.errors import PlanError
from roundoff.experiments.engine import Place
from roundoff.experiments.judgements import OutOfBudget
from roundoff.experiments.plan_activations import ActivationBudget, ActivationPlan, activations_task, with_activations
from roundoff.experiments.plan_fixed import FixedPlan, fixed_task
from roundoff.experiments.plan_options import PlanOptions, Tell
from roundoff.experiments.plan_text import verified_lines
from roundoff.experiments.plan_trials import Verification
from roundoff.experiments.plan_workplace import Workplace
from roundoff.experiments.subject_train import TrainSubject
from roundoff.experiments.task import Task
from roundoff.experiments.trial import Subject
from roundoff.precision import find_recipe, to_toml
from roundoff.precision.recipe import Recipe
from roundoff.runs import JsonValue
from roundoff.train.config import TrainConfig


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
        return [f"{self.recipe.name} {trains}.", *self.evidence, *verified_lines(self.verification)]

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
class Extra:
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
    subject: Subject,
    extra: Extra,
    options: PlanOptions,
    *,
    base: Path,
    name: str | None = None,
    recipe_file: Path | None = None,
    jobs: int = 1,
    on: Place = "pool",
    tell: Tell = lambda line: None,
) -> ExtraPlan:
    """Choose by what one step shows, try the recipe beside fp32, and write it down.

    Raises:
        PlanError: the training is a script, or fails in fp32.
    """
    if not isinstance(subject, TrainSubject):
        raise PlanError.explain(
            f"Of `{subject.name}` {extra.called} cannot be planned.",
            why="one step has to be run again and again, which only settings of roundoff train allow.",
            fix=f"roundoff plan ... train OPTIONS; for a model of yours: {extra.by_hand}",
        )
    workplace = Workplace.open(subject, options, base=base, name=name, jobs=jobs, on=on, tell=tell)
    folder = workplace.folder
    chosen: ActivationPlan | FixedPlan = workplace.trials.run(extra.task(subject.config, options, folder.trial(0)))
    file = recipe_file or folder.recipe
    recipe = extra.recipe(chosen, find_recipe(options.base), name=file.stem)
    tell("chosen; now it is tried" if options.verify else "chosen")
    verification = _tried(recipe, options, workplace)
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


def _tried(recipe: Recipe, options: PlanOptions, workplace: Workplace) -> Verification | None:
    if not options.verify:
        return None
    try:
        return workplace.verifier(options).verify(recipe)
    except OutOfBudget:
        return None


def _toml(plan: ExtraPlan) -> str:
    lines = [f"Planned by roundoff for: {plan.subject}", *plan.lines]
    return "".join(f"# {line}\n" for line in lines) + "\n" + to_toml(plan.recipe)
