"""The whole model in a narrow dtype, computed by the device itself."""

from __future__ import annotations

import contextlib

from torch import nn

from roundoff.precision.computation import Computation, cast_floats
from roundoff.precision.sites import (
    Boundary,
    boundaries,
    formats_of_modules,
    formats_of_parameters,
    native_dtype,
    norm_boundaries,
)


class NativeCast(Computation):
    """Weights and buffers stored narrow; wide sites (norms, overrides) get their inputs cast, and cast back behind."""

    def attach(self, model: nn.Module) -> None:
        """Cast parameters and buffers, and put brackets around the sites whose format differs."""
        for parameter, fmt in formats_of_parameters(model, self.recipe).items():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(native_dtype(fmt))
        formats = formats_of_modules(model, self.recipe)
        for module, fmt in formats.items():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    module._buffers[name] = buffer.to(native_dtype(fmt))
        for boundary in [*boundaries(model, self.recipe), *norm_boundaries(model, self.recipe)]:
            self._bracket_site(boundary)

    def _bracket_site(self, boundary: Boundary) -> None:
        self.bracket(
            boundary.module,
            inputs=lambda values: cast_floats(values, boundary.fmt),
            around=contextlib.nullcontext,
            outputs=lambda values: cast_floats(values, boundary.around),
        )
