"""Applies a recipe to a model and its optimizer, and chooses how the model computes under it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import overload

import torch
from torch import nn
from torch.optim import Optimizer

from roundoff.errors import RecipeError
from roundoff.formats import format_named
from roundoff.precision.applied_recipe import AppliedRecipe, BufferRollback, Removable
from roundoff.precision.compute.computation import Computation
from roundoff.precision.compute.emulated_cast import EmulatedCast
from roundoff.precision.compute.emulated_ops import RoundingScope, RoundResults, profile_policy
from roundoff.precision.compute.native import Autocast, NativeCast, NativeLists
from roundoff.precision.compute.op_overrides import op_overrides
from roundoff.precision.compute.operands import OperandRounding
from roundoff.precision.compute.sharded_weights import as_sharded
from roundoff.precision.compute.torchao_kernels import choose_kernels
from roundoff.precision.loss_scaler import LossScaler, ScaleLog
from roundoff.precision.optimizer import RecipeOptimizer, check_optimizers
from roundoff.precision.optimizer_states import check_optimizer_states
from roundoff.precision.recipe.fixed_point_settings import TensorKind, TensorSetting
from roundoff.precision.recipe.named_recipes import find_recipe
from roundoff.precision.recipe.recipe import Arithmetic, Recipe, Role, ScaleSettings, scale_settings
from roundoff.precision.recipe.recipe_environment import apply_changes, recipe_in_environment, write_applied_recipe
from roundoff.precision.recipe.site_formats import (
    dtype_of,
    layers_with_roles,
    names_an_op,
    override_sites,
    overrides_in_environment,
    site_of,
)
from roundoff.precision.weights import Weights, copy_master_weights


@overload
def apply_recipe(
    model: nn.Module,
    optimizer: Optimizer,
    recipe: str | Path | Recipe,
    *,
    loss_scale: str | float | ScaleSettings | None = None,
    num_losses: int = 1,
    overrides: Mapping[str, str] | None = None,
    wide: Sequence[Role] = (),
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
    num_losses: int = 1,
    overrides: Mapping[str, str] | None = None,
    wide: Sequence[Role] = (),
    arithmetic: Arithmetic | None = None,
    log: ScaleLog | None = None,
) -> tuple[nn.Module, tuple[RecipeOptimizer, ...]]: ...
@overload
def apply_recipe(
    model: Sequence[nn.Module],
    optimizer: Optimizer,
    recipe: str | Path | Recipe,
    *,
    loss_scale: str | float | ScaleSettings | None = None,
    num_losses: int = 1,
    overrides: Mapping[str, str] | None = None,
    wide: Sequence[Role] = (),
    arithmetic: Arithmetic | None = None,
    log: ScaleLog | None = None,
) -> tuple[list[nn.Module], RecipeOptimizer]: ...
@overload
def apply_recipe(
    model: Sequence[nn.Module],
    optimizer: Sequence[Optimizer],
    recipe: str | Path | Recipe,
    *,
    loss_scale: str | float | ScaleSettings | None = None,
    num_losses: int = 1,
    overrides: Mapping[str, str] | None = None,
    wide: Sequence[Role] = (),
    arithmetic: Arithmetic | None = None,
    log: ScaleLog | None = None,
) -> tuple[list[nn.Module], tuple[RecipeOptimizer, ...]]: ...
def apply_recipe(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer],
    recipe: str | Path | Recipe,
    *,
    loss_scale: str | float | ScaleSettings | None = None,
    num_losses: int = 1,
    overrides: Mapping[str, str] | None = None,
    wide: Sequence[Role] = (),
    arithmetic: Arithmetic | None = None,
    log: ScaleLog | None = None,
) -> tuple[nn.Module | list[nn.Module], RecipeOptimizer | tuple[RecipeOptimizer, ...]]:
    """Make a model train with a recipe; return the model, changed in place, and the optimizer to use from now on.

    Call it before wrapping the model in DistributedDataParallel. In the training loop, replace `loss.backward()` by
    `optimizer.backward(loss)`; nothing else changes.

    Args:
        model: The model, in fp32, or a list of models; the sites of the second are then `1.blocks.0` and so on.
        optimizer: Any torch optimizer, or several; several share one loss scale.
        recipe: A name (`roundoff recipes` lists them), a combination such as `O2+act4`, a TOML file, or a `Recipe`. A
            recipe in `ROUNDOFF_RECIPE` replaces it, together with `loss_scale`, `overrides` and `arithmetic`.
        loss_scale: Replaces that of the recipe: "dynamic", "dynamic:torch", a number, 0 for dynamic, "none".
        num_losses: The number of losses that have a scale of their own; pass `loss_id` to `backward` then.
        overrides: Formats of single sites (`blocks.1.attn`) and ops (`blocks.1.attn:softmax`), in addition to those of
            the recipe; those in `ROUNDOFF_OVERRIDES` come last.
        wide: Roles of layers that stay in fp32, besides those of the recipe: "router", "head".
        arithmetic: How narrow formats are computed: "native", "emulated" (fp32, rounded), or "auto".
        log: A function or a file that receives `step, loss, overflow, scale` of every step; reading the loss waits for
            the device.

    Raises:
        RecipeError: the recipe does not exist, is invalid, or does not fit the model.
    """
    models = [model] if isinstance(model, nn.Module) or not isinstance(model, Sequence) else list(model)
    for each in models:
        _check_model(each)
    whole = model if isinstance(model, nn.Module) else nn.ModuleList(models)
    chosen = _choose_recipe(recipe, loss_scale, overrides, arithmetic)
    chosen = _keep_wide(whole, replace(chosen, wide=(*chosen.wide, *wide)))
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    check_optimizers(optimizers)
    check_optimizer_states(chosen, optimizers)
    # Both raise for a pattern that matches nothing, before the model is changed.
    _check_no_whole_model(models, override_sites(whole, chosen.overrides), chosen)
    op_overrides(whole, chosen.overrides)
    _warn_of_small_eps(chosen, optimizers)
    shared = _attach_recipe(whole, models, chosen, _scalers(chosen, num_losses, log))
    wrapped = tuple(RecipeOptimizer(each, shared) for each in optimizers)
    write_applied_recipe(whole, chosen)
    return whole if whole is model else models, wrapped[0] if isinstance(optimizer, Optimizer) else wrapped


def _attach_recipe(
    whole: nn.Module, models: Sequence[nn.Module], recipe: Recipe, scalers: Sequence[LossScaler]
) -> AppliedRecipe:
    buffers = [BufferRollback() for _ in models] if recipe.loss_scale.may_skip else []
    for rollback, model in zip(buffers, models, strict=False):
        rollback.attach(model)
    computation = _computation_for(whole, recipe)
    if recipe.device_profile:
        _add_profile(computation, recipe.device_profile)
    master_weights = copy_master_weights(whole, recipe)
    computation.attach(whole)
    weights = Weights(whole, recipe, computation, master_weights)
    weights.round_gradients()
    for model in models:
        weights.attach(model)
        computation.enclose(model)
    return AppliedRecipe(
        recipe,
        computation=computation,
        weights=weights,
        scalers=scalers,
        buffers=buffers,
        extras=[extra for model in models for extra in extras_for(model, recipe)],
        log_losses=any(scaler.log is not None for scaler in scalers),
    )


def _keep_wide(model: nn.Module, recipe: Recipe) -> Recipe:
    """Return the recipe with an override for every layer that stays wide because of its role."""
    wide = {site_of(name): "fp32" for name in layers_with_roles(model, recipe.wide)}
    return replace(recipe, overrides={**wide, **recipe.overrides})


def _scalers(recipe: Recipe, num_losses: int, log: ScaleLog | None) -> list[LossScaler]:
    if num_losses < 1:
        raise RecipeError.explain(f"num_losses = {num_losses} is invalid.", why="a training has at least one loss.")
    return [LossScaler(recipe.loss_scale, log=log) for _ in range(num_losses)]


def _check_no_whole_model(models: Sequence[nn.Module], overridden: Mapping[nn.Module, str], recipe: Recipe) -> None:
    for place, model in enumerate(models):
        if model in overridden and len(models) > 1:
            raise RecipeError.explain(
                f"An override keeps all of model {place} in {overridden[model]}.",
                why=f"recipe '{recipe.name}' is applied to it as a whole.",
                fix="leave that model out of the list, and apply another recipe to it.",
            )


def _choose_recipe(
    recipe: str | Path | Recipe,
    loss_scale: str | float | ScaleSettings | None,
    overrides: Mapping[str, str] | None,
    arithmetic: Arithmetic | None,
) -> Recipe:
    """Return the recipe of the environment, or that of the call with its arguments; then apply changes from outside."""
    chosen = recipe_in_environment()
    if chosen is None:
        plain = find_recipe(recipe)
        chosen = replace(
            plain,
            loss_scale=plain.loss_scale if loss_scale is None else scale_settings(loss_scale),
            overrides={**plain.overrides, **(overrides or {})},
            arithmetic=arithmetic or plain.arithmetic,
        )
    return apply_changes(replace(chosen, overrides={**chosen.overrides, **overrides_in_environment()}))


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise RecipeError.explain(
            f"A recipe applies to an nn.Module or a list of them, not to a {type(model).__name__}.",
            fix="pass the model whose forward the training calls.",
        )
    if any(p.is_meta for p in model.parameters()):
        raise RecipeError.explain(
            "The weights of the model are on the meta device.",
            why="they have no values that a recipe could copy or round.",
            fix='move the model first: model.to_empty(device="cpu"), then initialize or load its weights.',
        )
    narrow = {p.dtype for p in model.parameters() if p.is_floating_point()} - {torch.float32, torch.float64}
    if narrow:
        raise RecipeError.explain(
            f"The model already holds {', '.join(sorted(str(dtype) for dtype in narrow))}.",
            why="the recipe decides which tensors are narrow, and must start from an fp32 model.",
            fix="remove model.half() and similar calls.",
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


def _computation_for(model: nn.Module, recipe: Recipe) -> Computation:
    """Return how the model will compute, without its device profile; `auto` is emulated on a CPU and native elsewhere.

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
        device = next((parameter.device for parameter in model.parameters()), None)
        return OperandRounding(recipe, choose_kernels(recipe, device))
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
    for key, fmt in recipe.overrides.items():
        if names_an_op(key):
            raise RecipeError.explain(
                f'Recipe \'{recipe.name}\' cannot have the override "{key}" = "{fmt}" of an op.',
                why=f"{why}.",
                fix=f'override the whole site: "{key.rpartition(":")[0]}" = "{fmt}", or use arithmetic = "emulated" '
                "with O1, O2, O3, half, bf16 or fp32.",
            )


def _check_not_sharded(model: nn.Module, recipe: Recipe) -> None:
    if any(as_sharded(parameter) is not None for parameter in model.parameters()):
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


class FixedPointComputation(Computation):
    """Computes in fp32; the quantizers of `roundoff.precision.fixed` are added to the model separately."""

    arithmetic = "emulated"


def _add_profile(computation: Computation, profile: str) -> None:
    """Emulate a device that has some functions only in fp16: round their operands and results, at every site."""
    policy, scope, plain = profile_policy(profile), RoundingScope(), computation.computing

    @contextmanager
    def computing() -> Iterator[None]:
        with scope.entering(format_named("fp16")), RoundResults(computation.calls, scope, policy), plain():
            yield

    computation.computing = computing  # type: ignore[method-assign]
    computation.reenters = True


def extras_for(model: nn.Module, recipe: Recipe) -> list[Removable]:
    """Add fixed point and compressed activations to the model if the recipe has them; return handles to remove them."""
    extras: list[Removable] = []
    if recipe.compute == "fixed":
        extras.append(_convert_to_fixed_point(model, recipe))
    if recipe.least_activation_bits:
        from roundoff.precision.activations import ActivationSettings, compress_activations

        extras.append(compress_activations(model, ActivationSettings(bits=_activation_bits(recipe))))
    return extras


def _activation_bits(recipe: Recipe) -> int | dict[str, int]:
    """Return one number of bits, or a mapping whose `*` holds it for the sites that no other pattern matches."""
    if not recipe.activation_sites:
        return recipe.activation_bits
    others = {"*": recipe.activation_bits} if recipe.activation_bits else {}
    return {**others, **recipe.activation_sites}


def _convert_to_fixed_point(model: nn.Module, recipe: Recipe) -> Removable:
    from roundoff.precision.fixed import convert_to_fixed_point

    sites = {**recipe.fixed.sites, **_float_sites(recipe)}
    return convert_to_fixed_point(model, replace(recipe.fixed, sites=sites))


def _float_sites(recipe: Recipe) -> dict[str, dict[TensorKind, TensorSetting]]:
    """Return the overrides in terms of fixed point: the tensors of a site in fp32 are not quantized."""
    for pattern, fmt in recipe.overrides.items():
        if fmt != "fp32":
            raise RecipeError.explain(
                f'Invalid override "{pattern}" = "{fmt}" in fixed point.',
                why="the only format an override can have in this recipe is fp32; bits are set under [fixed].",
                fix=f'write [fixed.sites."{pattern}".weight] bits = 6, and so on, into a recipe file.',
            )
    kinds: tuple[TensorKind, ...] = ("weight", "bias", "activation", "gradient", "error")
    return {
        pattern: {kind: replace(getattr(recipe.fixed, kind), method="none") for kind in kinds}
        for pattern in recipe.overrides
    }
