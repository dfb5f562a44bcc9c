"""What a plan is made with: its options, its folder, and the trials that are run for it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from roundoff.errors import PlanError, RoundoffError, UsageError
from roundoff.experiments.engine.scheduler import Backend
from roundoff.experiments.experiment_folder import ExperimentFolder
from roundoff.experiments.trials.judges import final_loss
from roundoff.experiments.trials.runner import FinishedTrial, TrialRunner
from roundoff.experiments.trials.trial import TrialTarget
from roundoff.files import write_atomically
from roundoff.formats import format_named
from roundoff.runs import JsonValue, to_json

OnMessage = Callable[[str], None]
"""Called with what is going on, a line at a time."""
DEFAULT_LOSS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One of three: the relative change of the loss, the mean bits per number, or the bytes."""

    loss: float | None = None
    """The largest relative change of the loss in one step."""
    bits: float | None = None
    """The mean bits of the weights and results of the model."""
    memory_bytes: int | None = None
    """The bytes of the weights and results of one step together."""

    def __post_init__(self) -> None:
        given = [name for name in ("loss", "bits", "memory_bytes") if getattr(self, name) is not None]
        if len(given) != 1:
            raise PlanError.explain(
                f"A plan has exactly one target; {len(given)} are given.",
                why="the narrowest formats for a loss and the smallest error for a budget are different searches.",
                fix="give one of --target loss=0.5%, --bits 18, --memory 40MB.",
            )
        if not getattr(self, given[0]) > 0:
            raise PlanError.explain(f"Invalid target {given[0]} = {getattr(self, given[0])}: it must be above 0.")

    @property
    def is_budget(self) -> bool:
        """Whether the memory is limited, not the error."""
        return self.loss is None

    def __str__(self) -> str:
        if self.loss is not None:
            return f"the loss within {100 * self.loss:g} % of fp32 in one step"
        if self.bits is not None:
            return f"{self.bits:g} bits per number on average"
        return f"{self.memory_bytes} bytes of weights and results"


def target_of(text: str | None, *, bits: float | None = None, memory_bytes: int | None = None) -> Target:
    """Return the target of the options; the default is the loss within 0.5 %.

    >>> target_of("loss=0.5%").loss
    0.005

    Raises:
        PlanError: the text is not a target, or there is more than one.
    """
    if text is None and bits is None and memory_bytes is None:
        return Target(loss=DEFAULT_LOSS)
    return Target(loss=None if text is None else _loss(text), bits=bits, memory_bytes=memory_bytes)


def _loss(text: str) -> float:
    match = re.fullmatch(r"loss=(\d*\.?\d+(?:[eE][-+]?\d+)?)(%?)", text.strip())
    if match is None:
        raise PlanError.explain(
            f"Invalid --target '{text}'.", why="it says how much the loss may change.", fix="write it as loss=0.5%"
        )
    return float(match[1]) / (100 if match[2] else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBudget:
    """How much a forward pass may save for its backward pass: in bytes, or as a share of what it saves uncompressed."""

    num_bytes: int | None = None
    share: float | None = None

    def bytes_of(self, uncompressed: int) -> int:
        """Return the budget in bytes."""
        return self.num_bytes if self.num_bytes is not None else int((self.share or 0.0) * uncompressed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Where a plan starts, what it has to meet, and how much its verification may cost."""

    base: str | None = None
    """The recipe to start from, a name or a TOML file; None: half, or fp32 if no formats are planned."""
    formats: tuple[str, ...] = ()
    """What sites may take besides fp32; empty: what the base recipe computes in."""
    target: Target = field(default_factory=lambda: Target(loss=DEFAULT_LOSS))
    modules_only: bool = False
    """Give formats to whole sites only, never to single ops."""
    activations: ActivationBudget | None = None
    """Plan the bits of saved activations under this budget, instead of formats."""
    fixed_bits: int | None = None
    """Plan fixed point, starting from this many bits, instead of formats."""
    measured_step: int = 2
    """The step that is measured, from 0. In the first steps, what starts at zero has not changed yet."""
    verify: bool = True
    seeds: int = 3
    """How many trainings with the recipe, and how many in fp32, are compared."""
    num_steps: int | None = 100
    """How many steps these take; None: as many as the training itself."""
    max_runs: int | None = None
    max_seconds: float | None = None
    recipe_file: Path | None = None
    """Where the recipe goes, besides the folder of the plan."""
    runs: Path = Path("runs")
    """The parent directory of the folder of the plan."""
    name: str | None = None
    """The name of that folder; None: the next of `plan-1`, `plan-2`, ..."""
    jobs: int = 1
    """How many trainings there are at a time."""
    on: Backend = "pool"
    """Where they run."""

    def __post_init__(self) -> None:
        if self.activations is not None and self.fixed_bits is not None:
            raise UsageError.explain(
                "--activations and --fixed cannot be combined.", fix="make two plans, one after the other."
            )
        for fmt in self.formats:
            format_named(fmt)  # an unknown format is an error now, not after the first training
        if self.seeds < 2:
            raise PlanError.explain(
                f"Invalid --seeds {self.seeds}: at least 2 are needed.",
                why="the noise is measured from several trainings in fp32.",
                fix="use 2 or more, or --no-verify.",
            )

    @property
    def base_name(self) -> str:
        """The recipe to start from."""
        return self.base or ("fp32" if self.extra else "half")

    @property
    def extra(self) -> str:
        """What is planned instead of formats, in words; empty: formats."""
        if self.fixed_bits is not None:
            return f"fixed {self.fixed_bits}"
        if self.activations is None:
            return ""
        share, num_bytes = self.activations.share, self.activations.num_bytes
        return f"activations {num_bytes} bytes" if share is None else f"activations {100 * share:g}%"

    def request(self, subject: str, fingerprint: str) -> dict[str, JsonValue]:
        """Return what must be equal for a plan to resume, as JSON values; budgets may change."""
        return {
            "subject": subject,
            "fingerprint": fingerprint,
            "base": self.base_name,
            "formats": list(self.formats),
            "target": str(self.target),
            "modules_only": self.modules_only,
            "extra": self.extra,
            "measured_step": self.measured_step,
            "seeds": self.seeds,
            "num_steps": self.num_steps,
        }


class PlanFolder(ExperimentFolder):
    """The folder of a plan."""

    kind: ClassVar[str] = "plan"
    noun: ClassVar[str] = "plan"
    error: ClassVar[type[RoundoffError]] = PlanError

    @property
    def sensitivity(self) -> Path:
        """The measured step."""
        return self.path / "sensitivity.json"

    @property
    def recipe(self) -> Path:
        """The recipe to use."""
        return self.path / "recipe.toml"

    def judgements(self, number: int) -> Path:
        """Return the file of the judgements of the nth repair, which is a bisection."""
        return self.path / f"repair-{number}.jsonl"

    def write_trial_recipe(self, text: str) -> Path:
        """Write a recipe for a trial, and return its file; equal texts have the same file."""
        path = self.path / "recipes" / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.toml"
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, text.encode())
        return path

    def finish(self, recipe: str, *, answer: dict[str, JsonValue], recipe_file: Path) -> None:
        """Write the recipe, here and to `recipe_file`, and the answer, which ends the plan."""
        for path in dict.fromkeys((self.recipe, recipe_file)):
            try:
                write_atomically(path, recipe.encode())
            except OSError as error:
                raise PlanError.explain(
                    f"'{path}' cannot be written.", why=f"{error.strerror}.", fix=f"the recipe is in '{self.recipe}'."
                ) from error
        write_atomically(self.answer, f"{to_json(answer, indent=1)}\n".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSession:
    """The folder of a plan, and the trials that are run for it."""

    folder: PlanFolder
    trials: TrialRunner
    recipe_file: Path
    """Where the recipe goes."""

    @classmethod
    def open(cls, training: TrialTarget, options: PlanOptions, *, on_message: OnMessage) -> Self:
        """Create the folder, or resume in the one of an interrupted plan."""
        request = options.request(training.name, training.fingerprint)
        folder = PlanFolder.open(request, base=options.runs, name=options.name)
        on_message(f"plan of `{training.name}` in {folder.path}")
        planned = 2 * options.seeds if options.verify else 0

        def on_trial(trial: FinishedTrial) -> None:
            left = max(0, planned - trial.number) * trials.seconds_each / max(1, options.jobs)
            on_message(_trial_line(trial, planned=planned, seconds_left=left))

        trials = TrialRunner(training, folder, jobs=options.jobs, on=options.on, on_trial=on_trial)
        return cls(folder=folder, trials=trials, recipe_file=options.recipe_file or folder.recipe)


def _trial_line(trial: FinishedTrial, *, planned: int, seconds_left: float) -> str:
    """Return the line of a finished training; those beyond the planned ones are repairs, of unknown number."""
    recipe = "fp32" if trial.setting.recipe == "fp32" else f"recipe {Path(trial.setting.recipe or '').stem}"
    loss = final_loss(trial.result)
    ended = f"loss {loss:.4g}" if loss is not None else f"exit code {trial.result.exit_code}"
    place = f"{trial.number}/{planned}" if trial.number <= planned else f"{trial.number}"
    left = f"; about {seconds_left:.0f} s left" if seconds_left >= 1 else ""
    return f"[{place}] {recipe}, seed {trial.setting.seed}: {ended} after {trial.seconds:.1f} s{left}"
