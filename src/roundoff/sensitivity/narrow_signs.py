"""What shows that a training is narrow already, so that there is less to measure than it seems."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from roundoff.precision import Recipe

_FP32_BYTES = 4


class NarrowSigns:
    """Collects signs that a training does not compute in fp32."""

    def __init__(self) -> None:
        self._signs: dict[str, None] = {}

    def see_optimizer(self, optimizer: object) -> None:
        """Look for a recipe that rounds."""
        recipe = getattr(optimizer, "recipe", None)
        if isinstance(recipe, Recipe) and _rounds(recipe):
            self._signs[f"the recipe '{recipe.name}' is applied"] = None

    def see_autocast(self) -> None:
        """Take note that autocast is on where something could be measured."""
        self._signs["torch.autocast is on"] = None

    def see_models(self, models: Iterable[nn.Module]) -> None:
        """Look for weights that hold fewer bits."""
        weights = (weight for model in models for weight in model.parameters())
        narrow = {x.dtype for x in weights if x.is_floating_point() and x.dtype.itemsize < _FP32_BYTES}
        self._signs.update((f"there are weights in {dtype}", None) for dtype in sorted(narrow, key=str))

    def __str__(self) -> str:
        """All of them in one sentence; empty if there are none."""
        return ", ".join(self._signs)


def _rounds(recipe: Recipe) -> bool:
    """Whether a recipe computes in fewer bits somewhere; saved activations in few bits are no computation."""
    has_narrow_sites = any(fmt != "fp32" for fmt in recipe.overrides.values())
    return recipe.compute != "plain" or bool(recipe.device_profile) or has_narrow_sites
