"""Emulates narrow formats in fp32: every result and every gradient is rounded to the numbers of the format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.formats import Format, format_named
from roundoff.precision.compute.computation import Computation, OpenCalls, map_floats
from roundoff.precision.compute.emulated_ops import (
    CASTS,
    LISTS,
    WHOLE,
    Policy,
    RoundingScope,
    RoundResults,
    copy_marks,
    mark,
)
from roundoff.precision.compute.graph_rounding import round_in_place, round_with_gradient
from roundoff.precision.compute.op_overrides import OpOverrides
from roundoff.precision.compute.torch_ops import Function, open_composite
from roundoff.precision.recipe.site_formats import (
    Boundary,
    boundaries,
    dtype_of,
    formats_of_modules,
    formats_of_parameters,
    is_torch_norm,
    norm_boundaries,
)

_BY_OP = "_roundoff_wide_by_op"


class RoundChosenOps(RoundResults):
    """`RoundResults` for models in which single ops have a format of their own.

    An op in fp32 takes its operands as they are and returns a wide result, as if the model's code had called `.float()`
    on them; what follows in the site's own code is then wide too, up to the next product. An op in a narrow format gets
    rounded operands; its result is rounded, and again to the format of the site.
    """

    def __init__(
        self, calls: OpenCalls, scope: RoundingScope, policy: Policy, ops: OpOverrides, *, norms_narrow: bool = False
    ) -> None:
        super().__init__(calls, scope, policy, norms_narrow=norms_narrow)
        self._ops = ops

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and round its result to the format of its override, or else of its site."""
        kwargs = kwargs or {}
        if (
            self._scope.paused
            or self._open_calls.has_ended()
            or func in CASTS
            or getattr(func, "__name__", "") == "__get__"
        ):
            return super().__torch_function__(func, types, args, kwargs)
        if inner := open_composite(func):
            with self:
                return inner(*args, **kwargs)
        fmt = self._ops.format_of(func)
        if fmt is None:
            result = super().__torch_function__(func, types, args, kwargs)
            if _any_by_op(args):
                self._note_by_op(result)
            return result
        if fmt == "fp32":
            return self._call_wide(func, args, kwargs)
        return self._call_narrow(func, args, kwargs, format_named(fmt))

    def _call_wide(self, func: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if self._scope.fmt is not None:
            result = self._stored_wide(result)
            mark(result, wide=True)
            self._note_by_op(result)
        return result

    def _call_narrow(self, func: Function, args: Any, kwargs: dict[str, Any], fmt: Format) -> Any:
        around = self._scope.fmt
        # A tensor that the op writes to must not be replaced by a rounded copy.
        written = [args[0]] if args and _writes(func) else []
        written += [kwargs["out"]] if "out" in kwargs else []

        def narrow(x: Tensor) -> Tensor:
            is_read = x.dtype is torch.float32 and not any(x is each for each in written)
            return round_with_gradient(x, fmt) if is_read else x

        args, kwargs = map_floats((args, kwargs), narrow)
        result = func(*args, **kwargs)
        with self._scope.entering(fmt):
            self._round_all(result)
        if around is not None:
            self._round_all(result)
            mark(result, wide=False)
        return result

    def _note_by_op(self, result: Any) -> None:
        if self._policy.starts_wide:
            return  # wide results flow from site to site there anyway
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, Tensor) and self._is_wide(item):
                setattr(item, _BY_OP, True)


def narrow_again(scope: RoundingScope, values: Any) -> Any:
    """Round the inputs or outputs of a site that are wide only because of an override of an op."""
    fmt = scope.fmt
    if fmt is None:
        return values
    with scope.pausing():
        return map_floats(values, lambda x: round_with_gradient(x, fmt) if hasattr(x, _BY_OP) else x)


def _any_by_op(args: Any) -> bool:
    return any(hasattr(x, _BY_OP) or (isinstance(x, tuple | list) and _any_by_op(x)) for x in args)


def _writes(func: Function) -> bool:
    name = getattr(func, "__name__", "").partition(".")[0]
    return name.startswith("__i") or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


class EmulatedCast(Computation):
    """Storage and arithmetic are fp32; weights, buffers, results and gradients hold only numbers of the format.

    Used for models that are cast as a whole, for models whose ops are cast by lists (weights stay fp32, and products
    round them), and for fp32 models with narrow sites.
    """

    arithmetic = "emulated"
    reenters = True
    is_traceable = False

    def attach(self, model: nn.Module) -> None:
        """Round parameters and buffers, and switch the format at the sites where it differs."""
        recipe = self.recipe
        self._scope = RoundingScope()
        self._policy = LISTS if recipe.compute == "lists" else WHOLE
        self._base = _narrow_format(recipe.compute_format)
        self._narrow_norms = recipe.compute == "cast" and recipe.norms != "fp32"
        if recipe.compute == "cast":
            self._round_weights(model)
        else:
            mark([*model.parameters()], wide=True)
        # torch's own norms sum in fp32 whatever the dtype: the mode rounds their results.
        norms = [found for found in norm_boundaries(model, recipe) if not is_torch_norm(found.module)]
        for boundary in [*boundaries(model, recipe), *norms]:
            self._bracket_site(boundary)
        self._ops = OpOverrides(model, recipe.overrides)
        if self._ops:
            self._ops.follow(self, hand_on=partial(narrow_again, self._scope))

    def enter_inputs(self, inputs: Any) -> Any:
        """Round float inputs as the cast would; store inputs that are already narrow in fp32."""
        fmt = self._base
        if fmt is None:
            return inputs
        if self.recipe.inputs == "keep":
            return map_floats(inputs, partial(_stored_in_fp32, dtype=dtype_of(fmt.name)))
        return map_floats(inputs, lambda x: round_with_gradient(x.float(), fmt))

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Round the results of all ops inside the model's forward."""
        self._scope.paused = False  # an exception may have ended an earlier forward while paused
        mode = RoundResults(self.calls, self._scope, self._policy, norms_narrow=self._narrow_norms)
        if self._ops:
            mode = RoundChosenOps(self.calls, self._scope, self._policy, self._ops, norms_narrow=self._narrow_norms)
        with self._scope.entering(self._base), mode:
            yield

    def pause(self, paused: bool) -> None:
        """Round nothing while paused."""
        self._scope.paused = paused

    def carry(self, before: Any, after: Any) -> None:
        """Keep wide tensors wide, and narrow ones narrow."""
        copy_marks(before, after)

    def _bracket_site(self, boundary: Boundary) -> None:
        inside, outside = _narrow_format(boundary.fmt), _narrow_format(boundary.around)

        def into(values: Any) -> Any:
            if inside is None or self._policy is LISTS:
                return values
            with self._scope.pausing():
                return map_floats(values, lambda x: round_with_gradient(x, inside))

        def out_of(values: Any) -> Any:
            if outside is None or self._policy is LISTS:
                mark(values, wide=True)
                return values
            with self._scope.pausing():
                return map_floats(values, lambda x: round_with_gradient(x, outside))

        self.bracket(boundary.module, inputs=into, around=partial(self._scope.entering, inside), outputs=out_of)

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


def _stored_in_fp32(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    if x.dtype is not dtype:
        return x
    stored = x.float()
    mark(stored, wide=False)
    return stored


def _narrow_format(name: str) -> Format | None:
    return None if name == "fp32" else format_named(name)
