"""torch.autocast around the model's forward."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision.computation import Computation, cast_floats
from roundoff.precision.sites import Boundary, boundaries, dtype_of


class Autocast(Computation):
    """What torch.amp does in the forward; overridden sites run outside of it, in their own format."""

    def attach(self, model: nn.Module) -> None:
        """Find the model's device, and put brackets around overridden sites."""
        self._device = next((p.device.type for p in model.parameters()), "cpu")
        self._dtype = dtype_of(self.recipe.compute_format)
        for boundary in boundaries(model, self.recipe):
            self._override(boundary)

    def computing(self) -> AbstractContextManager[Any]:
        """Autocast, on the device the model was on when the recipe was applied."""
        return torch.autocast(self._device, dtype=self._dtype)

    def _override(self, boundary: Boundary) -> None:
        fmt = boundary.fmt
        dtype = dtype_of(fmt)
        if dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise RecipeError.explain(
                f"Recipe '{self.recipe.name}' cannot keep a site in '{fmt}'.",
                why="under autocast a site can be fp32, fp16 or bf16.",
                fix="for other formats use O1, O2, bf16 or fp32 with overrides; they are emulated.",
            )

        def around() -> AbstractContextManager[Any]:
            return torch.autocast(self._device, dtype=dtype, enabled=dtype != torch.float32)

        self.bracket(
            boundary.module,
            inputs=lambda values: cast_floats(values, fmt),
            around=around,
            outputs=lambda values: cast_floats(values, boundary.around),
        )
