"""The loss scale of every step: its value, whether the step is skipped, and how the scale changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roundoff.errors import LossScaleError, RecipeError
from roundoff.precision.recipe.recipe import ScaleSettings
from roundoff.precision.recipe.recipe_environment import frozen_loss_scale, is_frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledStep:
    """One attempted step, as it is logged."""

    step: int
    loss: float
    overflow: str | None
    """The first gradient that was not finite, or None."""
    scale: float
    """The factor by which the loss of this step was multiplied."""

    def line(self) -> str:
        """Return `step, loss, overflow, scale` as one line of CSV.

        >>> ScaledStep(step=3, loss=0.5, overflow="head.weight", scale=65536.0).line()
        '3, 0.5, head.weight, 65536'
        """
        return f"{self.step}, {self.loss:.9g}, {self.overflow or '-'}, {self.scale:.17g}"


ScaleLog = Callable[[ScaledStep], None] | str | Path
"""A function to call, or a file to append lines to; `-` means standard error."""


class LossScaler:
    """The loss scale, step by step. It sees no tensors: the caller of `update` says whether gradients overflowed.

    >>> from roundoff.precision import scale_settings
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
        self.log = log

    def update(self, *, overflow: str | None, loss: float | None = None) -> None:
        """Count one attempted step; `overflow` is its first non-finite gradient, or None if all were finite.

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
        self._write_log(done)
        limit = self.settings.max_skips
        if limit and self.num_skips_in_a_row >= limit:
            raise LossScaleError.explain(
                f"{self.num_skips_in_a_row} steps in a row overflowed; the loss scale fell to {self.scale:g}.",
                why=f"the gradient of '{overflow}' is not finite at any scale: an earlier op makes NaN or infinity.",
                fix="find the op with `roundoff run`, or keep that layer wide: "
                f'overrides={{"{(overflow or "").rpartition(".")[0] or overflow}": "fp32"}}',
            )

    def _note_clean(self) -> None:
        settings = self.settings
        self.num_skips_in_a_row = 0
        self.num_clean += 1
        if self._adapts and self.num_clean >= settings.interval:
            self.scale = min(self.scale * settings.growth, settings.largest)
            self.num_clean = 0

    def _note_overflow(self) -> None:
        settings = self.settings
        self.num_skips += 1
        self.num_skips_in_a_row += 1
        self.num_clean = 0
        if self._adapts:
            self.scale = max(self.scale * settings.backoff, settings.smallest)

    @property
    def _adapts(self) -> bool:
        return self.settings.kind == "dynamic" and not is_frozen(num_steps=self.step - 1)

    def remember(self) -> dict[str, Any]:
        """Return the state, for `recall`."""
        return {name: value for name, value in vars(self).items() if name != "log"}

    def recall(self, memory: dict[str, Any]) -> None:
        """Return to an earlier state."""
        vars(self).update(memory)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed training needs."""
        return {
            "kind": self.settings.kind,
            "scale": self.scale,
            "num_clean": self.num_clean,
            "num_skips": self.num_skips,
            "num_skips_in_a_row": self.num_skips_in_a_row,
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state. A static scale keeps its value; from another kind only step and skips are taken.

        States of `torch.amp.GradScaler` and of apex's amp are read as well; that of a disabled GradScaler is empty.
        """
        if not state:
            return
        if "growth_factor" in state:
            self._adopt(state)
        state = _in_our_words(state, step=self.step)
        missing = [name for name in ("kind", "scale", "num_clean", "step") if name not in state]
        if missing:
            raise RecipeError.explain(
                "The loss scale in the checkpoint cannot be read.", why=f"{', '.join(missing)} is missing."
            )
        self.step = int(state["step"])
        self.num_skips = int(state.get("num_skips", 0))
        if state["kind"] != self.settings.kind:
            return
        self.num_clean = int(state["num_clean"])
        self.num_skips_in_a_row = int(state.get("num_skips_in_a_row", 0))
        if self.settings.kind == "dynamic":
            self.scale = float(state["scale"])

    def _adopt(self, state: dict[str, Any]) -> None:
        """Take over how the scale of a GradScaler grows and falls."""
        if self.settings.kind == "dynamic":
            self.settings = replace(
                self.settings,
                growth=float(state["growth_factor"]),
                backoff=float(state["backoff_factor"]),
                interval=int(state["growth_interval"]),
            )

    def _write_log(self, step: ScaledStep) -> None:
        if callable(self.log):
            self.log(step)
        elif self.log is not None and str(self.log) == "-":
            print(step.line(), file=sys.stderr)
        elif self.log is not None:
            with Path(self.log).open("a", encoding="utf-8") as file:
                file.write(step.line() + "\n")


def _in_our_words(state: dict[str, Any], *, step: int) -> dict[str, Any]:
    """Return the state of a GradScaler, or of apex's first scaler, as one of ours; other states as they are."""
    if "_growth_tracker" in state:
        return {"kind": "dynamic", "scale": state["scale"], "num_clean": state["_growth_tracker"], "step": step}
    apex = state.get("loss_scaler0")
    if isinstance(apex, dict) and "loss_scale" in apex:
        clean = apex.get("unskipped", 0)
        return {"kind": "dynamic", "scale": apex["loss_scale"], "num_clean": clean, "step": step}
    return state
