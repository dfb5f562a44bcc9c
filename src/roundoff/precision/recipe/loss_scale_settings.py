"""Settings of the loss scale: static or dynamic, with the settings of four well-known dynamic scalers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from roundoff.errors import RecipeError

ScaleKind = Literal["none", "static", "dynamic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSettings:
    """How the loss is scaled.

    - `dynamic` starts at `initial`. After `interval` steps without overflow the scale is multiplied by `growth`, up to
      `largest`; on an overflow the step is skipped and the scale multiplied by `backoff`, down to `smallest`.
    - `static` keeps `initial`, and skips overflowing steps only with `drop_overflow_update`.
    - `none` scales nothing and checks nothing.

    `max_skips` skipped steps in a row raise an error that names the gradient; 0 means no limit.
    """

    kind: ScaleKind = "none"
    flavour: str = ""
    initial: float = 1.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    smallest: float = 0.0
    largest: float = float(2**126)
    max_skips: int = 0
    drop_overflow_update: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScaleKind):
            raise _invalid_setting("kind", self.kind, ", ".join(get_args(ScaleKind)))
        for name in ("initial", "growth", "backoff"):
            if not getattr(self, name) > 0:
                raise _invalid_setting(name, getattr(self, name), "a number above 0")
        if self.interval < 1:
            raise _invalid_setting("interval", self.interval, "an integer of at least 1")
        if self.max_skips < 0:
            raise _invalid_setting("max_skips", self.max_skips, "0 for no limit, or a number of steps")
        if not 0 <= self.smallest <= self.initial <= self.largest:
            raise _invalid_setting(
                "initial", self.initial, f"{self.smallest:g} (smallest) to {self.largest:g} (largest)"
            )

    @property
    def may_skip(self) -> bool:
        """Whether gradients are checked, and steps with a non-finite one skipped."""
        return self.kind == "dynamic" or (self.kind == "static" and self.drop_overflow_update)


def _invalid_setting(name: str, value: object, allowed: str) -> RecipeError:
    return RecipeError.explain(f"Loss scale setting {name} = {value!r} is invalid.", why=f"allowed: {allowed}.")


FLAVOURS: Final = {
    flavour.flavour: flavour
    for flavour in (
        ScaleSettings(kind="dynamic", flavour="apex", initial=2.0**16, largest=2.0**24, max_skips=200),
        ScaleSettings(kind="dynamic", flavour="torch", initial=2.0**16, max_skips=200),
        ScaleSettings(kind="dynamic", flavour="mindspore", initial=2.0**24, smallest=1.0, max_skips=1000),
        ScaleSettings(
            kind="dynamic", flavour="fp16_optimizer", initial=2.0**32, interval=1000, smallest=1.0, max_skips=1000
        ),
    )
}
"""The default dynamic scalers of apex, torch, MindSpore and FP16_Optimizer."""

DYNAMIC: Final = FLAVOURS["apex"]
NONE: Final = ScaleSettings()


def scale_settings(loss_scale: str | float | ScaleSettings) -> ScaleSettings:
    """Return the settings that a short form stands for.

    `"dynamic"` and 0 mean apex's scaler, `"dynamic:torch"` another flavour, a positive number a static scale that
    skips overflowing steps, `"static:1024"` a static scale without checks, and `"none"` no scaling.

    >>> scale_settings("dynamic:mindspore").initial
    16777216.0
    >>> scale_settings(128).kind
    'static'
    """
    if isinstance(loss_scale, ScaleSettings):
        return loss_scale
    text = str(loss_scale)
    if text == "none":
        return NONE
    if text == "dynamic":
        return DYNAMIC
    kind, _, rest = text.partition(":")
    if kind == "dynamic" and rest in FLAVOURS:
        return FLAVOURS[rest]
    number = _number(rest if kind == "static" else text)
    if number == 0 and kind != "static":
        return DYNAMIC
    if number is None or not 0 < number < float("inf"):
        raise RecipeError.explain(
            f"Invalid loss scale '{loss_scale}'.",
            why=f"allowed: none, dynamic, {', '.join(f'dynamic:{name}' for name in FLAVOURS)}, 0 (dynamic), a positive "
            "number (static, overflowing steps are skipped), static:NUMBER (never checked).",
            fix='use "dynamic" if unsure.',
        )
    return replace(NONE, kind="static", initial=number, drop_overflow_update=kind != "static")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
