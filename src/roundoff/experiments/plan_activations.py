"""Bits for the saved activations of every site, under a memory budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from roundoff.experiments.plan_training import StandingStep, standing_step
from roundoff.experiments.task import Task
from roundoff.precision.activations import UNCOMPRESSED, ActivationSettings, choose_bits, compress_activations
from roundoff.precision.recipe import Recipe
from roundoff.train.config import TrainConfig


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
        widths = ", ".join(f"{count} at {_width(bits)}" for bits, count in counts.items())
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
    return Task(name="activations", call=plan_activations, argument=argument, log=folder / "log.txt")


def plan_activations(task: ActivationTask) -> ActivationPlan:
    """Train for a few steps, then choose bits by what compressing each site does to the gradient of the next.

    Raises:
        RecipeError: not even 2 bits everywhere fit the budget.
    """
    with standing_step(task.config, after=task.step) as standing:
        before = _saved(standing, UNCOMPRESSED)
        budget = task.budget.bytes_of(before)
        chosen = choose_bits(standing.model, standing.run, budget_bytes=budget)
        after = _saved(standing, chosen)
    return ActivationPlan(bits=dict(chosen), bytes_before=before, bytes_after=after, budget_bytes=budget)


def with_activations(recipe: Recipe, plan: ActivationPlan) -> Recipe:
    """Return the recipe with the bits of the plan."""
    return replace(recipe, activation_bits=0, activation_sites=dict(plan.bits))


def _saved(standing: StandingStep, bits: int | Mapping[str, int]) -> int:
    with compress_activations(standing.model, ActivationSettings(bits=bits)) as compressed:
        standing.run()
        standing.model.zero_grad()
        return compressed.report().bytes_after


def _width(bits: int) -> str:
    return "full width" if bits == UNCOMPRESSED else f"{bits} bits"
