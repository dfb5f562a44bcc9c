"""A sweep as a value: the trainings it asks for, each with the labels that tell it from the others."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from roundoff.errors import SweepError
from roundoff.runs import to_json
from roundoff.train import TrainConfig

_DO_NOT_CHANGE_A_ROW = ("name", "runs", "resume", "recipe", "timeout_seconds", "tensorboard")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTraining:
    """One training of a sweep, and so one row of its table."""

    labels: Mapping[str, str]
    """Where it stands on each axis: {"recipe": "O2", "batch_size": "64"}."""
    config: TrainConfig
    """`recipe` is a name; with `recipe_toml` it is the name of the file to write that to."""
    recipe_toml: str | None = None
    """The whole recipe, if it has no name of its own."""

    @property
    def name(self) -> str:
        """The labels in one line, for people."""
        return ", ".join(self.labels.values())

    @property
    def key(self) -> str:
        """A fingerprint of everything that decides the result: equal for equal settings."""
        settings = {k: v for k, v in self.config.to_object().items() if k not in _DO_NOT_CHANGE_A_ROW}
        text = to_json([settings, self.recipe_toml or self.config.recipe])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def matches(self, pattern: str) -> bool:
        """Whether a shell pattern matches the name, a label, or `axis=label`."""
        words = (self.name, *self.labels.values(), *(f"{axis}={label}" for axis, label in self.labels.items()))
        return any(fnmatch.fnmatchcase(word, pattern) for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A table of trainings."""

    name: str
    description: str
    axes: tuple[str, ...]
    trainings: tuple[PlannedTraining, ...]

    def only(self, pattern: str) -> Sweep:
        """Return the sweep with those trainings alone that a pattern matches; a `SweepError` if there is none."""
        kept = tuple(training for training in self.trainings if training.matches(pattern))
        if not kept:
            names = "; ".join(training.name for training in self.trainings[:6])
            more = len(self.trainings) - 6
            raise SweepError.explain(
                f"No training of the sweep '{self.name}' matches '{pattern}'.",
                why=f"they are: {names}{f'; and {more} more' if more > 0 else ''}.",
                fix="a pattern matches a label (O2), axis=label (recipe=O2) or all labels ('O2, *').",
            )
        return replace(self, trainings=kept)

    def shortened(self, steps: int) -> Sweep:
        """Return the sweep with every training stopped after so many steps."""
        short = (replace(each, config=replace(each.config, steps=steps)) for each in self.trainings)
        return replace(self, trainings=tuple(short))
