"""Decides the loss scale of every step: what it is, whether the step counts, and what comes next."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundoff.errors import LossScaleError, RecipeError
from roundoff.precision.recipe.loss_scale_settings import ScaleSettings
from roundoff.precision.recipe.recipe_environment import frozen_loss_scale, is_frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledStep:
    """One attempted step, as the log gets it."""

    step: int
    loss: float
    overflow: str | None
    """The first gradient that was not finite, or None."""
    scale: float
    """What the loss of this step was multiplied with."""

    def line(self) -> str:
        """Return `step, loss, overflow, scale` as one line of CSV.

        >>> ScaledStep(step=3, loss=0.5, overflow="head.weight", scale=65536.0).line()
        '3, 0.5, head.weight, 65536'
        """
        return f"{self.step}, {self.loss:.9g}, {self.overflow or '-'}, {self.scale:.17g}"


ScaleLog = Callable[[ScaledStep], None] | str | Path
"""A function to call, or a file to append lines to; `-` is the standard error."""


class LossScaler:
    """The loss scale, step by step. Knows nothing of tensors: `update` hears whether gradients overflowed.

    >>> from roundoff.precision.recipe.loss_scale_settings import scale_settings
    >>> scaler = LossScaler(scale_settings("dynamic"))
    >>> scaler.update(overflow="head.weight")
    >>> scaler.scale
    32768.0
    """

    def __init__(self, settings: ScaleSettings, *, log: ScaleLog | None = None) -> None:
        self.settings = settings
        given = frozen_loss_scale() if settings.kind == "dynamic" else None
        self.scale = settings.initial if given is None else given
        self.num_clean = 0
        self.num_skips_in_a_row = 0
        self.num_skips = 0
        self.step = 0
        self.last_overflow: str | None = None
        self._log = log

    def update(self, *, overflow: str | None, loss: float | None = None) -> None:
        """Take note of one attempted step: its first non-finite gradient, or None if all were finite.

        Raises:
            LossScaleError: more steps in a row overflowed than the settings allow.
        """
        done = ScaledStep(
            step=self.step, loss=float("nan") if loss is None else loss, overflow=overflow, scale=self.scale
        )
        self.step += 1
        self.last_overflow = overflow
        if overflow is None:
            self._note_clean()
        else:
            self._note_overflow()
        if self._log is not None:
            write_log(self._log, done)
        limit = self.settings.max_skips
        if limit and self.num_skips_in_a_row >= limit:
            raise LossScaleError.explain(
                f"{self.num_skips_in_a_row} steps in a row overflowed; the loss scale fell to {self.scale:g}.",
                why=f"the gradient of '{overflow}' is not finite whatever the scale: something before it makes NaN or "
                "infinity.",
                fix="look where it comes from (roundoff run), or keep that layer wide: "
                f'overrides={{"{(overflow or "").rpartition(".")[0] or overflow}": "fp32"}}',
            )

    def _note_clean(self) -> None:
        settings = self.settings
        self.num_skips_in_a_row = 0
        self.num_clean += 1
        if self._follows and self.num_clean >= settings.interval:
            self.scale = min(self.scale * settings.growth, settings.largest)
            self.num_clean = 0

    def _note_overflow(self) -> None:
        settings = self.settings
        self.num_skips += 1
        self.num_skips_in_a_row += 1
        self.num_clean = 0
        if self._follows:
            self.scale = max(self.scale * settings.backoff, settings.smallest)

    @property
    def _follows(self) -> bool:
        return self.settings.kind == "dynamic" and not is_frozen(num_steps=self.step - 1)

    def remember(self) -> dict[str, Any]:
        """Return where it is, to go back there."""
        return {name: value for name, value in vars(self).items() if name != "_log"}

    def recall(self, memory: dict[str, Any]) -> None:
        """Go back."""
        vars(self).update(memory)

    @contextlib.contextmanager
    def silenced(self) -> Iterator[None]:
        """Log nothing inside the block: its steps are in the log already."""
        log, self._log = self._log, None
        try:
            yield
        finally:
            self._log = log

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs."""
        return {
            "kind": self.settings.kind,
            "scale": self.scale,
            "num_clean": self.num_clean,
            "num_skips": self.num_skips,
            "num_skips_in_a_row": self.num_skips_in_a_row,
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. A static scale stays as it was set; another kind takes over step and skips alone."""
        missing = [name for name in ("kind", "scale", "num_clean", "step") if name not in state]
        if missing:
            raise RecipeError.explain(
                "A checkpoint's loss scale cannot be read.", why=f"it lacks {', '.join(missing)}."
            )
        self.step = int(state["step"])
        self.num_skips = int(state.get("num_skips", 0))
        if state["kind"] != self.settings.kind:
            return
        self.num_clean = int(state["num_clean"])
        self.num_skips_in_a_row = int(state.get("num_skips_in_a_row", 0))
        if self.settings.kind == "dynamic":
            self.scale = float(state["scale"])


def write_log(log: ScaleLog, step: ScaledStep) -> None:
    """Hand a step to a function, or append its line to a file."""
    if callable(log):
        log(step)
    elif str(log) == "-":
        print(step.line(), file=sys.stderr)
    else:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(step.line() + "\n")
