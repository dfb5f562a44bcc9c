"""Applying a recipe to a model and its optimizer: the door of this room."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

import torch
from torch import nn
from torch.optim import Optimizer

from roundoff.errors import RecipeError
from roundoff.formats import format_named
from roundoff.precision.applied import leave_word
from roundoff.precision.buffers import BufferRollback
from roundoff.precision.computations import computation_for
from roundoff.precision.extras import extras_for
from roundoff.precision.named import find_recipe
from roundoff.precision.op_overrides import op_overrides
from roundoff.precision.optimizer import RecipeOptimizer, check_optimizers
from roundoff.precision.recipe import Arithmetic, Recipe
from roundoff.precision.scale_settings import ScaleSettings, scale_settings
from roundoff.precision.scaler import LossScaler, ScaleLog
from roundoff.precision.shared import Shared
from roundoff.precision.sites import override_sites, overrides_in_environment
from roundoff.precision.steering import changed, recipe_in_environment
from roundoff.precision.weights import Weights

_APPLIED = "_roundoff_recipe"


@overload
def apply_recipe(
    model: nn.Module,
    optimizer: Optimizer,
    recipe: str | Path | Recipe,
    *,
    loss_scale: str | float | ScaleSettings | None = None,
    overrides: Mapping[str, str] | None = None,
    arithmetic: Arithmetic | None = None,
    log: ScaleLog | None = None,
) -> tuple[nn.Module, RecipeOptimizer]: ...
@overload
def apply_recipe(
    model: nn.Module,
    optimizer: Sequence[Optimizer],
    recipe: str | Path | Recipe,
    *,
    loss_scale: str | float | ScaleSettings | None = None,
    overrides: Mapping[str, str] | None = None,
    arithmetic: Arithmetic | None = None,
    log: ScaleLog | None = None,
) -> tuple[nn.Module, tuple[RecipeOptimizer, ...]]: ...
def apply_recipe(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    recipe: str | Path | Recipe,
    *,
    loss_scale: str | float | ScaleSettings | None = None,
    overrides: Mapping[str, str] | None = None,
    arithmetic: Arithmetic | None = None,
    log: ScaleLog | None = None,
) -> tuple[nn.Module, RecipeOptimizer | tuple[RecipeOptimizer, ...]]:
    """Make a model train by a recipe; return it, changed in place, and the optimizer to use from now on.

    Call it before wrapping the model in DistributedDataParallel. The rest of the loop stays, except that
    `optimizer.backward(loss)` replaces `loss.backward()`.

    Args:
        model: The model, in fp32.
        optimizer: Any optimizer of torch, or several that work on this model; several share one loss scale.
        recipe: A name (`roundoff recipes` lists them), a combination such as `O2+act4`, a TOML file, or a value. A
            recipe in `ROUNDOFF_RECIPE` takes its place, and that of `loss_scale`, `overrides` and `arithmetic`.
        loss_scale: Replaces the recipe's: "dynamic", "dynamic:torch", a number, 0 for dynamic, "none".
        overrides: Formats of single sites (`blocks.1.attn`) and ops (`blocks.1.attn:softmax`), over those of the
            recipe; `ROUNDOFF_OVERRIDES` comes last.
        arithmetic: How narrow formats are computed: "native", "emulated" (fp32, rounded), or "auto".
        log: A function or a file that gets `step, loss, overflow, scale` of every step; reading the loss waits for
            the device.

    Raises:
        RecipeError: the recipe does not exist, cannot be, or does not fit the model.
    """
    chosen = _chosen(recipe, loss_scale, overrides, arithmetic)
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    check_optimizers(optimizers)
    _check_model(model)
    override_sites(model, chosen.overrides)  # a pattern that matches nothing leaves the model untouched
    op_overrides(model, chosen.overrides)
    _warn_of_small_eps(chosen, optimizers)
    shared = _shared(model, chosen, log)
    wrapped = tuple(RecipeOptimizer(each, shared) for each in optimizers)
    leave_word(model, chosen)
    return model, wrapped[0] if isinstance(optimizer, Optimizer) else wrapped


def _shared(model: nn.Module, recipe: Recipe, log: ScaleLog | None) -> Shared:
    buffers = BufferRollback(model) if recipe.loss_scale.may_skip else None
    computation = computation_for(model, recipe)
    weights = Weights(model, recipe, computation)
    computation.enclose(model)
    return Shared(
        recipe,
        computation=computation,
        weights=weights,
        scaler=LossScaler(recipe.loss_scale, log=log),
        buffers=buffers,
        extras=extras_for(model, recipe),
        log_losses=log is not None,
    )


def _chosen(
    recipe: str | Path | Recipe,
    loss_scale: str | float | ScaleSettings | None,
    overrides: Mapping[str, str] | None,
    arithmetic: Arithmetic | None,
) -> Recipe:
    """Return the recipe with what the call changes, or the environment's in its place; then what is asked of both."""
    chosen = recipe_in_environment()
    if chosen is None:
        plain = find_recipe(recipe)
        chosen = replace(
            plain,
            loss_scale=plain.loss_scale if loss_scale is None else scale_settings(loss_scale),
            overrides={**plain.overrides, **(overrides or {})},
            arithmetic=arithmetic or plain.arithmetic,
        )
    return changed(replace(chosen, overrides={**chosen.overrides, **overrides_in_environment()}))


def _check_model(model: nn.Module) -> None:
    narrow = {p.dtype for p in model.parameters() if p.is_floating_point()} - {torch.float32, torch.float64}
    if narrow:
        raise RecipeError.explain(
            f"The model already holds {', '.join(sorted(str(dtype) for dtype in narrow))}.",
            why="a recipe decides which tensor is narrow, and starts from fp32.",
            fix="leave out model.half() and the like.",
        )


def _warn_of_small_eps(recipe: Recipe, optimizers: Sequence[Optimizer]) -> None:
    if not recipe.narrow_weights or recipe.master_weights or recipe.update != "nearest":
        return
    smallest = format_named(recipe.weights).smallest_subnormal
    for optimizer in optimizers:
        eps = [group["eps"] for group in optimizer.param_groups if "eps" in group]
        if eps and min(eps) <= smallest / 2:
            warnings.warn(
                f"{type(optimizer).__name__}'s eps {min(eps):g} is 0 in {recipe.weights}, so recipe '{recipe.name}' "
                f"will divide by 0: set eps to 1e-4, or use a recipe with master weights such as O2.",
                stacklevel=4,
            )
