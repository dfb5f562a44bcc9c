"""Narrow formats emulated in fp32: every result and every gradient is rounded to what the format can hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from torch import nn

from roundoff.formats import Format, format_named
from roundoff.precision.computation import Computation, map_floats
from roundoff.precision.emulated_chosen_ops import RoundChosenOps, narrow_again
from roundoff.precision.emulated_ops import LISTS, WHOLE, RoundResults, Scope, copy_marks, mark
from roundoff.precision.op_overrides import OpOverrides
from roundoff.precision.rounding import narrowed, round_in_place
from roundoff.precision.sites import (
    Boundary,
    boundaries,
    formats_of_modules,
    formats_of_parameters,
    is_torch_norm,
    norm_boundaries,
)


class EmulatedCast(Computation):
    """Storage and arithmetic are fp32; weights, buffers, results and gradients hold only numbers of the format.

    It serves models that are cast as a whole, models whose ops are cast by lists (there weights stay fp32 and products
    round them), and fp32 models with narrow sites.
    """

    arithmetic = "emulated"
    reenters = True

    def attach(self, model: nn.Module) -> None:
        """Round parameters and buffers, and put brackets around the sites whose format differs."""
        recipe = self.recipe
        self._scope = Scope()
        self._policy = LISTS if recipe.compute == "lists" else WHOLE
        self._base = _narrow_format(recipe.compute_format)
        self._narrow_norms = recipe.compute == "cast" and recipe.norms != "fp32"
        if recipe.compute == "cast":
            self._round_weights(model)
        else:
            mark([*model.parameters()], wide=True)
        # torch's own norms sum in fp32 whatever the dtype: the mode rounds what they give.
        norms = [found for found in norm_boundaries(model, recipe) if not is_torch_norm(found.module)]
        for boundary in [*boundaries(model, recipe), *norms]:
            self._bracket_site(boundary)
        self._ops = OpOverrides(model, recipe.overrides)
        if self._ops:
            self._ops.follow(self, hand_on=partial(narrow_again, self._scope))

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
        self._scope.paused = False  # an exception may have ended an earlier forward in a pause
        mode = self._mode()
        with self._in_format(self._base), mode:
            yield

    def _mode(self) -> RoundResults:
        if self._ops:
            return RoundChosenOps(self._scope, self._policy, self._ops, norms_narrow=self._narrow_norms)
        return RoundResults(self._scope, self._policy, norms_narrow=self._narrow_norms)

    def pause(self, paused: bool) -> None:
        """Round nothing while paused."""
        self._scope.paused = paused

    def carry(self, before: Any, behind: Any) -> None:
        """Keep what was wide wide, and what was narrow narrow."""
        copy_marks(before, behind)

    @contextmanager
    def _in_format(self, fmt: Format | None) -> Iterator[None]:
        before = self._scope.fmt
        self._scope.enter(fmt)
        try:
            yield
        finally:
            self._scope.enter(before)

    def _bracket_site(self, boundary: Boundary) -> None:
        inside, outside = _narrow_format(boundary.fmt), _narrow_format(boundary.around)

        def into(values: Any) -> Any:
            if inside is None or self._policy is LISTS:
                return values
            with self._scope.pausing():
                return map_floats(values, lambda x: narrowed(x, inside))

        def out_of(values: Any) -> Any:
            if outside is None or self._policy is LISTS:
                mark(values, wide=True)
                return values
            with self._scope.pausing():
                return map_floats(values, lambda x: narrowed(x, outside))

        self.bracket(boundary.module, inputs=into, around=lambda: self._in_format(inside), outputs=out_of)

    def _round_weights(self, model: nn.Module) -> None:
        for parameter, fmt in formats_of_parameters(model, self.recipe).items():
            if fmt == "fp32":
                self.on_computed(parameter, partial(mark, wide=True))
            elif parameter.is_floating_point():
                round_in_place(parameter, format_named(fmt))
        for module, fmt in formats_of_modules(model, self.recipe).items():
            for buffer in module.buffers(recurse=False):
                if buffer.is_floating_point() and fmt != "fp32":
                    round_in_place(buffer, format_named(fmt))


def _narrow_format(name: str) -> Format | None:
    return None if name == "fp32" else format_named(name)
