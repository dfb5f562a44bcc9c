"""How the loss is scaled: static or dynamic, and the settings of four known dynamic scalers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from roundoff.errors import RecipeError

ScaleKind = Literal["none", "static", "dynamic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSettings:
    """Everything a loss scaler needs to know.

    `dynamic` starts at `initial`, multiplies by `growth` after `interval` clean steps, up to `largest`, and by
    `backoff` on an overflow, down to `smallest`; the step is skipped. `static` keeps `initial` and skips overflowing
    steps only with `drop_overflow_update`. `none` scales nothing and checks nothing. `max_skips` steps skipped in a
    row are an error that names the gradient; 0 means never.
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
                raise _invalid_setting(name, getattr(self, name), "any number above 0")
        if self.interval < 1:
            raise _invalid_setting("interval", self.interval, "any whole number from 1")
        if self.max_skips < 0:
            raise _invalid_setting("max_skips", self.max_skips, "0 for no limit, or a number of steps")
        if not 0 <= self.smallest <= self.initial <= self.largest:
            raise _invalid_setting(
                "initial", self.initial, f"{self.smallest:g} (smallest) to {self.largest:g} (largest)"
            )

    @property
    def may_skip(self) -> bool:
        """Whether gradients are checked, and a step with a bad one skipped."""
        return self.kind == "dynamic" or (self.kind == "static" and self.drop_overflow_update)


def _invalid_setting(name: str, value: object, allowed: str) -> RecipeError:
    return RecipeError.explain(f"Loss scale setting {name} = {value!r} cannot be.", why=f"allowed: {allowed}.")


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
"""The dynamic scalers users come from: how apex, torch, MindSpore and FP16_Optimizer set theirs."""

DYNAMIC: Final = FLAVOURS["apex"]
NONE: Final = ScaleSettings()


def scale_settings(loss_scale: str | float | ScaleSettings) -> ScaleSettings:
    """Return the settings a short form means.

    `"dynamic"` and 0 are apex's scaler, `"dynamic:torch"` another flavour, a positive number is a static scale that
    skips overflowing steps, `"static:1024"` one that checks nothing, and `"none"` no scaling.

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
            f"No loss scale '{loss_scale}'.",
            why=f"allowed: none, dynamic, {', '.join(f'dynamic:{name}' for name in FLAVOURS)}, 0 (dynamic), a positive "
            "number (static, overflowing steps are skipped), static:NUMBER (never checked).",
            fix='use "dynamic" unless you know better.',
        )
    return replace(NONE, kind="static", initial=number, drop_overflow_update=kind != "static")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
