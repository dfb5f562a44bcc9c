"""The switch `adaptive`: freezes scales that adapt to the data."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

from roundoff.errors import SwitchError
from roundoff.precision.recipe.recipe_environment import freezing_scales

OPTIONS: Final = frozenset({"loss_scale"})


def turning_on(value: str, options: Mapping[str, str]) -> AbstractContextManager[None]:
    """Freeze scales inside the block after `value` steps; "0" freezes them from the start.

    These are dynamic loss scales, of recipes and of torch's GradScaler, the scales of fp8 operands, and fixed-point
    scales of the method `auto`. A scale that has seen no data takes its first value. The option `loss_scale` sets
    dynamic loss scales to a number.
    """
    if not value.isdecimal():
        raise _value_error("adaptive", value, "it is a number of steps: 0, 20")
    after = int(value)
    loss_scale = _loss_scale(options["loss_scale"]) if "loss_scale" in options else None
    return _freezing(after, loss_scale)


@contextmanager
def _freezing(after: int, loss_scale: float | None) -> Iterator[None]:
    with freezing_scales(after=after, loss_scale=loss_scale), _freezing_grad_scalers(after, loss_scale):
        yield


@contextmanager
def _freezing_grad_scalers(after: int, loss_scale: float | None) -> Iterator[None]:
    """Keep the scale of `torch.amp.GradScaler` constant; steps with bad gradients are still skipped."""
    scaler_class: Any = torch.amp.GradScaler
    plain = scaler_class.update
    num_updates: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    @functools.wraps(plain)
    def update(self: Any, new_scale: Any = None) -> None:
        num_updates[self] = num_updates.get(self, 0) + 1
        if new_scale is None and self.is_enabled() and num_updates[self] > after:
            new_scale = self.get_scale() if loss_scale is None else loss_scale
        plain(self, new_scale)

    # Scalers that exist already must be frozen as well, so the class is changed and not its instances.
    scaler_class.update = update
    try:
        yield
    finally:
        scaler_class.update = plain


def _loss_scale(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise _value_error("adaptive.loss_scale", text, "it is a number above 0, such as 1024")
    return number


def _value_error(name: str, text: str, why: str) -> SwitchError:
    return SwitchError.explain(f"Invalid value '{text}' of the switch {name}.", why=f"{why}.")
