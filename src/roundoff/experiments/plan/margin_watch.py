"""Watches whether the margins of a planned recipe hold: runs the training with it, and warns where they shrink."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from roundoff.errors import PlanError
from roundoff.experiments.trials.targets import ScriptTarget, TrainTarget
from roundoff.experiments.trials.trial import TrialTarget, changing_environment
from roundoff.formats import format_named
from roundoff.precision import find_recipe
from roundoff.precision.recipe.recipe_environment import RECIPE_VARIABLE
from roundoff.report.parts import Facts, Sentence, to_text
from roundoff.runs import JsonValue
from roundoff.sensitivity.margins import Margin, measuring_margins
from roundoff.words import plural

_MIN_MEASURED = 4
"""From how many measured steps a trend is read."""
_MIN_FALL = 1.0
"""How many bits a margin must have lost for that."""
_MAX_SHOWN = 6
_PLANNED = ("cast", "lists", "autocast", "operands")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginWarning:
    """A margin that has reached its limit, or will."""

    kind: Literal["reached", "shrinks"]
    margin: Margin
    text: str


@dataclass(slots=True, kw_only=True)
class MarginHistory:
    """The margins of all measured steps, and what they warned of."""

    margins: dict[tuple[str, str, str], list[Margin]] = field(default_factory=dict)
    """By site, part and kind, in the order of the steps."""
    warnings: list[MarginWarning] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    exit_code: int = 0
    """That of the training."""
    failure: str | None = None
    """Why the measurement has ended before the training."""

    @property
    def is_good(self) -> bool:
        """Whether the training succeeded, its margins were measured to the end, and none shrinks."""
        return not self.exit_code and self.failure is None and bool(self.steps) and not self.warnings

    def add(self, step: int, margins: Sequence[Margin]) -> list[MarginWarning]:
        """Add a measured step, and return what is new: each margin is reported once as shrinking, once as reached."""
        self.steps.append(step)
        new = []
        for margin in margins:
            history = self.margins.setdefault(margin.key, [])
            history.append(margin)
            known = {each.kind for each in self.warnings if each.margin.key == margin.key}
            warning = _warning(history)
            if warning is not None and warning.kind not in known and "reached" not in known:
                new.append(warning)
        self.warnings += new
        return new

    def text(self, name: str) -> str:
        """Return the verdict, and the margins that are smallest at the end."""
        return to_text([Sentence(self._verdict(name)), Facts(self._facts(), label_width=11, is_apart=True)])

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        return {
            "good": self.is_good,
            "failure": self.failure,
            "exit_code": self.exit_code,
            "steps": list(self.steps),
            "warnings": [{"kind": each.kind, "text": each.text, **asdict(each.margin)} for each in self.warnings],
            "margins": [asdict(margin) for history in self.margins.values() for margin in history],
        }

    def _verdict(self, name: str) -> str:
        if not self.steps:
            why = self.failure or "the training took no step with a narrow layer"
            return f"No margin of {name} was measured: {why}."
        measured = f"{plural(len(self.steps), 'measured step')}, {self.steps[0]} to {self.steps[-1]}"
        shrunk = {each.margin.key for each in self.warnings}
        what = f"{plural(len(shrunk), 'margin')} of {name}" if shrunk else f"All margins of {name}"
        how = ("reached a limit or shrinks" if len(shrunk) == 1 else "reached a limit or shrink") if shrunk else "hold"
        failed = f" The training ended with exit code {self.exit_code}." if self.exit_code else ""
        ended = f" It was not measured further: {self.failure}." if self.failure else ""
        return f"{what} {how}: {measured}.{failed}{ended}"

    def _facts(self) -> list[tuple[str, str]]:
        smallest = sorted(self.margins.values(), key=lambda history: history[-1].bits)
        facts = [
            (f"{history[-1].bits:.1f} bits", f"{_tensor(history[-1])}; {history[0].bits:.1f} at step {history[0].step}")
            for history in smallest[:_MAX_SHOWN]
        ]
        return [("smallest", "what is left to the limit at the last measured step"), *facts] if facts else []


def watch_margins(
    training: TrialTarget, recipe_name: str, *, every: int, on_warning: Callable[[str], None]
) -> MarginHistory:
    """Run a training to its end with a recipe, measure every nth step, and warn as soon as a margin shrinks.

    Raises:
        PlanError: the training cannot be followed, or the recipe has no margins.
    """
    recipe = find_recipe(recipe_name)
    if recipe.compute not in _PLANNED:
        raise PlanError.explain(
            f"Recipe '{recipe.name}' has no margins to watch.",
            why="it computes in fp32." if recipe.compute == "plain" else "its bits are set per tensor, not per layer.",
            fix="name the recipe that the plan has written: --watch planned.toml",
        )
    if not isinstance(training, TrainTarget | ScriptTarget):
        raise PlanError.explain(
            f"`{training.name}` cannot be watched.",
            why="margins are measured inside the training, and a command is another process.",
            fix="name a script (roundoff plan --watch planned.toml train.py ...) or settings of roundoff train.",
        )
    history = MarginHistory()

    def add(step: int, margins: list[Margin]) -> None:
        for warning in history.add(step, margins):
            on_warning(f"step {step}: {warning.text}")

    with measuring_margins(recipe, every=every, on_step=add) as measurement:
        history.exit_code = _train(training, recipe_name)
    history.failure = measurement.failure
    return history


def _train(training: TrainTarget | ScriptTarget, recipe_name: str) -> int:
    path = Path(recipe_name)
    name = str(path.absolute()) if recipe_name.endswith(".toml") else recipe_name
    if isinstance(training, TrainTarget):
        from roundoff.train.trainer import train

        train(replace(training.config, recipe=name))
        return 0
    from roundoff.record.repeatable import repeatable
    from roundoff.record.script import run_script

    repeating = repeatable(seed=training.seed, deterministic=False, repeat_batch=False)
    with changing_environment({RECIPE_VARIABLE: name}), contextlib.chdir(training.working_folder), repeating:
        return run_script(training.script)


def _warning(history: Sequence[Margin]) -> MarginWarning | None:
    """Return what the last margin says: the limit is reached, or will be before the training is twice as long."""
    margin = history[-1]
    if margin.bits <= 0:
        return MarginWarning(kind="reached", margin=margin, text=f"{_tensor(margin)}: {_limit(margin)} is reached")
    recent = history[-_MIN_MEASURED:]
    bits = [each.bits for each in recent]
    if len(recent) < _MIN_MEASURED or bits != sorted(bits, reverse=True) or bits[0] - bits[-1] < _MIN_FALL:
        return None
    pace = (bits[0] - bits[-1]) / (margin.step - recent[0].step)
    reached = margin.step + margin.bits / pace
    if reached > 2 * margin.step:
        return None
    text = f"{_tensor(margin)}: was {recent[0].value:.3g} at step {recent[0].step}; at this pace {_limit(margin)} is"
    return MarginWarning(kind="shrinks", margin=margin, text=f"{text} reached near step {reached:.0f}")


def _tensor(margin: Margin) -> str:
    what = f"the {margin.part} of {margin.site}"
    if margin.kind == "accuracy":
        return f"{what} in {margin.fmt} has a signal-to-noise ratio of {margin.value:.0f} dB"
    return f"{what} in {margin.fmt} reaches {margin.value:.3g}"


def _limit(margin: Margin) -> str:
    fmt = format_named(margin.fmt)
    if margin.kind == "overflow":
        return f"a quarter of the largest number, {fmt.largest:g},"
    if margin.kind == "underflow":
        return f"64 times the smallest normal number, {fmt.smallest_normal:.3g},"
    return "10 dB, an error of a third,"
