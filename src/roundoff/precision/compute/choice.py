"""Chooses how a model computes: what the recipe needs on the model's device, and its device profile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from roundoff.errors import RecipeError
from roundoff.formats import format_named
from roundoff.precision.compute.computation import Computation
from roundoff.precision.compute.emulated_cast import EmulatedCast
from roundoff.precision.compute.emulated_ops import RoundingScope, RoundResults, profile_policy
from roundoff.precision.compute.native import Autocast, NativeCast, NativeLists
from roundoff.precision.compute.op_overrides import refuse_op_overrides
from roundoff.precision.compute.operands import OperandRounding
from roundoff.precision.recipe.recipe import Recipe
from roundoff.precision.recipe.site_formats import dtype_of, names_an_op


def add_profile(computation: Computation, profile: str) -> None:
    """Emulate a device that has some functions only in fp16: round their operands and results, at every site."""
    policy = profile_policy(profile)
    scope = RoundingScope()
    fmt = format_named("fp16")
    plain = computation.computing

    @contextmanager
    def computing() -> Iterator[None]:
        scope.enter(fmt)
        try:
            with RoundResults(scope, policy), plain():
                yield
        finally:
            scope.enter(None)

    def bound() -> AbstractContextManager[Any]:
        return computing()

    computation.computing = bound  # type: ignore[method-assign]
    computation.reenters = True


class FixedPointComputation(Computation):
    """Computes in fp32; the quantizers of `roundoff.precision.fixed` are added to the model separately."""

    arithmetic = "emulated"


def computation_for(model: nn.Module, recipe: Recipe) -> Computation:
    """Return how the model will compute, with its device profile if it has one."""
    computation = _computation_for(model, recipe)
    if recipe.device_profile:
        add_profile(computation, recipe.device_profile)
    return computation


def _computation_for(model: nn.Module, recipe: Recipe) -> Computation:
    """Return how the model will compute; `auto` is emulated on a CPU and native elsewhere.

    Formats that no device computes in (for example e4m3 as an override) are always emulated, and so are models with
    overrides of single ops.
    """
    _check_op_overrides(recipe)
    if recipe.compute == "autocast":
        if recipe.arithmetic == "emulated":
            raise RecipeError.explain(
                f"Recipe '{recipe.name}' cannot be emulated.",
                why="torch.autocast does the casting itself.",
                fix="use O1, which works the same way, native or emulated.",
            )
        return Autocast(recipe)
    emulated = recipe.arithmetic == "emulated" or (recipe.arithmetic == "auto" and _emulates(model, recipe))
    if recipe.compute == "cast":
        if not emulated:
            _check_not_sharded(model, recipe)
        return EmulatedCast(recipe) if emulated else NativeCast(recipe)
    if recipe.compute == "lists":
        return EmulatedCast(recipe) if emulated else NativeLists(recipe)
    if recipe.compute == "operands":
        return OperandRounding(recipe)
    if recipe.compute == "fixed":
        return FixedPointComputation(recipe)
    if recipe.overrides and any(fmt != "fp32" for fmt in recipe.overrides.values()):
        return EmulatedCast(recipe)
    return Computation(recipe)


def _check_op_overrides(recipe: Recipe) -> None:
    if recipe.compute == "autocast":
        why = "torch.autocast chooses the format of each op itself"
    elif recipe.compute == "fixed":
        why = "fixed point quantizes the parameters and outputs of modules, not the ops inside them"
    elif recipe.arithmetic == "native":
        why = "overrides of single ops are only available in emulation"
    else:
        return
    refuse_op_overrides(recipe.overrides, recipe=recipe.name, why=why)


def _check_not_sharded(model: nn.Module, recipe: Recipe) -> None:
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise RecipeError.explain(
            f"Recipe '{recipe.name}' cannot be computed natively on weights sharded by FSDP.",
            why="FSDP2 gathers all weights of a block in the dtype they had when they were sharded, fp32.",
            fix='use arithmetic = "emulated", or a recipe with fp32 weights: amp-bf16, amp-fp16, O1.',
        )


def _emulates(model: nn.Module, recipe: Recipe) -> bool:
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    formats = {recipe.compute_format, *recipe.overrides.values()}
    dtypes = [dtype_of(fmt) for fmt in formats]
    return (
        on_cpu
        or any(map(names_an_op, recipe.overrides))
        or any(dtype is None or dtype.itemsize < 2 for dtype in dtypes)
    )
