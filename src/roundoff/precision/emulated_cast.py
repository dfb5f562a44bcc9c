"""A narrow model emulated in fp32: every result and every gradient is rounded to what the format can hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from roundoff.formats import Format, format_named
from roundoff.precision.computation import Computation, map_floats
from roundoff.precision.emulated_ops import RoundResults, Scope, mark_wide
from roundoff.precision.rounding import narrowed, round_in_place
from roundoff.precision.sites import (
    formats_of_modules,
    formats_of_parameters,
    is_norm,
    is_torch_norm,
    override_sites,
)


class EmulatedCast(Computation):
    """Storage and arithmetic are fp32; weights, buffers, results and gradients hold only numbers of the format.

    A tensor that the model widens itself, with `x.float()`, stays wide until the next matrix product or convolution.
    """

    arithmetic = "emulated"

    def attach(self, model: nn.Module) -> None:
        """Round parameters and buffers, and put brackets around the sites whose format differs."""
        base = self.recipe.compute_format
        self._scope = Scope()
        self._base = None if base == "fp32" else format_named(base)
        self._round_weights(model)
        formats = formats_of_modules(model, self.recipe)
        overridden = override_sites(model, self.recipe.overrides)
        for module, fmt in formats.items():
            # torch's own norms sum in fp32 whatever the dtype: the mode rounds what they give.
            if module in overridden or (is_norm(module) and not is_torch_norm(module) and fmt != base):
                self._bracket_site(module, None if fmt == "fp32" else format_named(fmt))
        self._narrow_norms = self.recipe.compute == "cast" and self.recipe.norms != "fp32"

    def enter_inputs(self, inputs: Any) -> Any:
        """Round float inputs as the cast would."""
        fmt = self._base
        if fmt is None or self.recipe.inputs == "keep":
            return inputs
        return map_floats(inputs, lambda x: narrowed(x.float(), fmt))

    def computing(self) -> AbstractContextManager[Any]:
        """Round what every op gives, inside the model's forward."""
        return self._emulating()

    @contextmanager
    def _emulating(self) -> Iterator[None]:
        with self._in_format(self._base), RoundResults(self._scope, norms_narrow=self._narrow_norms):
            yield

    @contextmanager
    def _in_format(self, fmt: Format | None) -> Iterator[None]:
        scope = self._scope
        before = scope.fmt, scope.round_gradient
        scope.enter(fmt)
        try:
            yield
        finally:
            scope.fmt, scope.round_gradient = before

    def _bracket_site(self, module: nn.Module, fmt: Format | None) -> None:
        def into(values: Any) -> Any:
            return values if fmt is None else map_floats(values, lambda x: narrowed(x, fmt))

        def out_of(values: Any) -> Any:
            outer = self._base
            return values if outer is None else map_floats(values, lambda x: narrowed(x, outer))

        self.bracket(module, inputs=into, around=lambda: self._in_format(fmt), outputs=out_of)

    def _round_weights(self, model: nn.Module) -> None:
        for parameter, fmt in formats_of_parameters(model, self.recipe).items():
            if fmt == "fp32":
                mark_wide(parameter)
            elif parameter.is_floating_point():
                round_in_place(parameter, format_named(fmt))
        for module, fmt in formats_of_modules(model, self.recipe).items():
            for buffer in module.buffers(recurse=False):
                if buffer.is_floating_point() and fmt != "fp32":
                    round_in_place(buffer, format_named(fmt))
