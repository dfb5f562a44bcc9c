"""A plan in fixed point: bits and range of every tensor, and the recipe made of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from roundoff.experiments.plan_target import Target
from roundoff.experiments.plan_training import standing_step
from roundoff.experiments.task import Task
from roundoff.kernels.fixed_rule import RANGES, Range
from roundoff.precision.fixed import FixedPointSettings, TensorSetting
from roundoff.precision.fixed.settings import covers
from roundoff.precision.recipe import Recipe
from roundoff.train.config import TrainConfig

Kind = Literal["weight", "activation", "gradient", "error"]
_KINDS: Final[tuple[Kind, ...]] = ("weight", "activation", "gradient", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedChoice:
    """Bits and range of one kind of tensor at one site."""

    site: str
    kind: Kind
    bits: int
    range: Range
    error: float
    """What it moves the loss by; of gradients, the error relative to their length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPlan:
    """Bits and ranges of a model, and what they are expected to do."""

    bits: int
    """What a tensor takes that nothing speaks against."""
    choices: tuple[FixedChoice, ...]
    loss: float
    loss_change: float

    def settings(self) -> FixedPointSettings:
        """Return the settings: the usual of each kind, and the sites that differ, outer ones first."""
        usual = {kind: TensorSetting(bits=self.bits, range=self._usual_range(kind)) for kind in _KINDS}
        sites: dict[str, dict[str, TensorSetting]] = {}
        for each in sorted(self.choices, key=lambda choice: choice.site.count(".")):
            around = [
                table[each.kind] for outer, table in sites.items() if covers(outer, each.site) and each.kind in table
            ]
            own = TensorSetting(bits=each.bits, range=each.range)
            if each.site and own != (around[-1] if around else usual[each.kind]):
                sites.setdefault(each.site, {})[each.kind] = own
        return FixedPointSettings(**usual, sites=sites)  # type: ignore[arg-type]

    def recipe(self, *, name: str, description: str = "") -> Recipe:
        """Return the recipe."""
        return Recipe(name=name, description=description, compute="fixed", fixed=self.settings().to_dict())

    def evidence(self) -> list[str]:
        """Say what it rests on, the tensors that matter most first."""
        wider = Counter(f"{each.bits} bits" for each in self.choices)
        ranges = Counter(str(each.range) for each in self.choices)
        share = self.loss_change / abs(self.loss) if self.loss else 0.0
        worst = sorted((each for each in self.choices if each.kind in ("weight", "activation")), key=_by_error)[:5]
        return [
            f"expected  the loss {self.loss:.4g} moves by {self.loss_change:.2g} ({100 * share:.2g} %) in one step",
            f"widths    {_counted(wider)}",
            f"ranges    {_counted(ranges)}",
            *(f"most      {each.site or '<model>'} {each.kind}: {each.error:.2g}" for each in worst),
        ]

    def _usual_range(self, kind: Kind) -> Range:
        counts = Counter(each.range for each in self.choices if each.kind == kind)
        return max(RANGES, key=lambda name: counts[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedTask:
    """What is sent to the process that measures."""

    config: TrainConfig
    bits: int
    target: Target
    step: int


def fixed_task(config: TrainConfig, *, bits: int, target: Target, step: int, folder: Path) -> Task:
    """Return the call that chooses bits and ranges for a training, and whose value is a `FixedPlan`."""
    argument = FixedTask(config=config, bits=bits, target=target, step=step)
    return Task(name="fixed", call=plan_fixed, argument=argument, log=folder / "log.txt")


def plan_fixed(task: FixedTask) -> FixedPlan:
    """Train for a few steps in float, then choose by what quantizing each tensor does to the loss of the next."""
    # Imported here: choosing makes values of this file.
    from roundoff.experiments.plan_fixed_choosing import choose_fixed

    with standing_step(task.config, after=task.step) as standing:
        return choose_fixed(standing, bits=task.bits, target=task.target)


def _by_error(each: FixedChoice) -> float:
    return -each.error


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} at {name}" for name, count in sorted(counts.items()))
