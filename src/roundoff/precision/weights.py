"""The weights that the optimizer updates, their gradients, and how they are rounded into those of the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.formats import Format, format_named, round_to
from roundoff.precision.compute.computation import Computation
from roundoff.precision.compute.graph_rounding import gradient_rounder, round_in_place
from roundoff.precision.compute.sharded_weights import is_distributed, local_part, place_of
from roundoff.precision.recipe.recipe import Recipe
from roundoff.precision.recipe.site_formats import dtype_of, formats_of_modules, formats_of_parameters, site_of
from roundoff.torch_private import foreach_mul_

_COMPENSATION = "kahan_compensation"


class WeightUpdate:
    """Writes an updated main weight into the model.

    - `nearest`, and always with master weights: the parameter becomes the rounded main weight.
    - `stochastic`: the fp32 result of the update is rounded stochastically, with the same random numbers on every rank,
      so that replicas stay equal.
    - `kahan`: the rounding error is kept, in the same format, and added to the next update.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._kind = "nearest" if recipe.master_weights else recipe.update
        self._generator = torch.Generator()
        if self._kind == "stochastic":
            self._generator.manual_seed(_shared_seed())

    @torch.no_grad()
    def apply(self, parameter: Tensor, main: Tensor, fmt: Format, states: Any) -> None:
        """Round `main` into `parameter`; without master weights `main` holds the same values afterwards.

        Each rank rounds its own part of sharded weights.
        """
        is_shadowed, stream = main is not parameter, place_of(main)
        compensation = local_part(_compensation_in(states[main], main)) if self._kind == "kahan" else None
        parameter, main = local_part(parameter), local_part(main)
        if self._kind == "stochastic":
            round_to(main.data, fmt, rounding="stochastic", generator=self._generator, stream=stream, out=main.data)
            parameter.copy_(main)
        elif compensation is not None:
            _compensate(parameter, main, fmt, compensation)
        elif is_shadowed and main.dtype is parameter.dtype:
            round_to(main.detach(), fmt, out=parameter.detach())
        elif is_shadowed:
            parameter.copy_(main)
        elif parameter.dtype is torch.float32:
            round_to(parameter.detach(), fmt, out=parameter.detach())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the random generator."""
        return {"generator": self._generator.get_state()} if self._kind == "stochastic" else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the random generator of a checkpoint, if it has one."""
        if self._kind == "stochastic" and "generator" in state:
            self._generator.set_state(state["generator"].cpu())


def _compensation_in(state: dict[str, Any], main: Tensor) -> Tensor:
    if _COMPENSATION not in state:
        state[_COMPENSATION] = torch.zeros_like(main)
    compensation: Tensor = state[_COMPENSATION]
    return compensation


def _compensate(parameter: Tensor, main: Tensor, fmt: Format, compensation: Tensor) -> None:
    before = parameter.float()
    wanted = main - before + compensation
    after = round_to(before + wanted, fmt)
    lost = wanted - (after - before)
    compensation.copy_(round_to(lost, fmt))
    main.copy_(after)
    parameter.copy_(after)


def _shared_seed() -> int:
    """Return the seed of torch on rank 0: ranks that see different data must round their weights in the same way."""
    seed = torch.initial_seed() % 2**63
    if not is_distributed():
        return seed
    seeds = [seed]
    torch.distributed.broadcast_object_list(seeds, src=0)
    return int(seeds[0])


@dataclass(slots=True)
class Weight:
    """One parameter of the model, and the tensor that the optimizer updates: a main weight or the parameter itself."""

    name: str
    parameter: Tensor
    main: Tensor
    fmt: Format | None
    """The format to which the parameter is rounded after an update; None for no rounding."""
    version: int = 0
    """The parameter's version after our last write: any other version means that other code has written to it."""
    grad_version: int = -1
    """The version of the parameter's gradient that was copied to `main`."""

    @property
    def is_shadowed(self) -> bool:
        """Whether the optimizer updates another tensor than the model's."""
        return self.main is not self.parameter


class Weights:
    """All weights of a model with a recipe, by parameter.

    With master weights, `main` is fp32 and the model computes with its rounded copy. Without them, `main` has the
    dtype of the format, so that the optimizer computes in it too, or is the parameter itself.

    Make it after `computation.attach(model)`, which narrows the weights; `master_weights` are copies from before.
    """

    def __init__(
        self, model: nn.Module, recipe: Recipe, computation: Computation, master_weights: Mapping[Tensor, Tensor]
    ) -> None:
        self._recipe = recipe
        self._computation = computation
        self._update = WeightUpdate(recipe)
        self._wide_sums: list[Tensor] = []
        """Narrow parameters whose gradients accumulate in fp32."""
        self._loaded: dict[Tensor, Tensor] = {}
        self._formats_of_modules = formats_of_modules(model, recipe)
        formats = _narrow_formats(model, recipe)
        self.by_parameter: dict[Tensor, Weight] = {
            parameter: self._make_weight(site_of(name), parameter, formats.get(parameter), master_weights)
            for name, parameter in model.named_parameters()
        }

    def round_gradients(self) -> None:
        """Round the gradients of narrow weights from now on."""
        for weight in self.by_parameter.values():
            if weight.fmt is not None:
                self._round_gradients(weight.parameter, weight.fmt)

    def attach(self, model: nn.Module) -> None:
        """Put main weights into the model's `state_dict`, and read them from there."""
        # A partial, because torch sets an attribute on the hook.
        self._computation.keep(model.register_state_dict_post_hook(partial(self._give_main)))
        if self._recipe.saved == "narrow":
            self._computation.keep(model.register_state_dict_post_hook(partial(self._narrow_saved)))
        self._computation.keep(model.register_load_state_dict_pre_hook(self._before_load))
        self._computation.keep(model.register_load_state_dict_post_hook(self._after_load))

    def of(self, parameter: Tensor, *, name: str) -> Weight:
        """Return the weight of a parameter; one outside the model, for example of the loss, is not rounded."""
        if parameter not in self.by_parameter:
            self.by_parameter[parameter] = Weight(name=name, parameter=parameter, main=parameter, fmt=None)
        return self.by_parameter[parameter]

    def take_over_changes(self, weights: Iterable[Weight]) -> None:
        """Update main weights whose parameters were changed by other code, such as a loaded checkpoint or a clamp."""
        for weight in weights:
            if weight.is_shadowed and weight.parameter._version != weight.version:
                with torch.no_grad():
                    weight.main.copy_(weight.parameter)
                weight.version = weight.parameter._version

    def expect_gradients(self) -> None:
        """Let gradients arrive in the dtype of their parameter, so that DistributedDataParallel can exchange them."""
        if is_distributed():
            for parameter in self._wide_sums:
                _set_grad_dtype(parameter, parameter.dtype)

    def widen_gradients(self) -> None:
        """Convert gradients that arrived narrow to fp32, before they are unscaled."""
        for parameter in self._wide_sums:
            _set_grad_dtype(parameter, torch.float32)

    def write_back(self, weights: Sequence[Weight], states: Any) -> None:
        """Write the main weights that the optimizer has updated into the model."""
        for weight in weights:
            if weight.fmt is not None:
                self._update.apply(weight.parameter, weight.main, weight.fmt, states)
                weight.version = weight.parameter._version

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the updates besides that of the optimizer."""
        return self._update.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._update.load_state_dict(state)

    def _make_weight(
        self, name: str, parameter: Tensor, fmt: str | None, master_weights: Mapping[Tensor, Tensor]
    ) -> Weight:
        if fmt is None:
            return Weight(name=name, parameter=parameter, main=parameter, fmt=None)
        main = self._main(parameter, master_weights, dtype_of(fmt))
        return Weight(name=name, parameter=parameter, main=main, fmt=format_named(fmt), version=parameter._version)

    def _main(self, parameter: Tensor, master_weights: Mapping[Tensor, Tensor], dtype: torch.dtype | None) -> Tensor:
        if parameter in master_weights:
            value = master_weights[parameter]
        elif self._recipe.update != "nearest":
            value = parameter.detach().float().clone()
        elif self._computation.arithmetic == "native" or dtype is None or dtype.itemsize < 2:
            return parameter
        else:
            value = parameter.detach().to(dtype)
        return nn.Parameter(value, requires_grad=parameter.requires_grad)

    def _round_gradients(self, parameter: Tensor, fmt: Format) -> None:
        """Round gradients to the format; they accumulate in fp32 where the main weights are fp32."""
        if not parameter.requires_grad:
            return
        wide_sums = self._recipe.master_weights or self._recipe.update != "nearest"
        if self._computation.arithmetic == "native":
            if wide_sums:
                self._wide_sums.append(parameter)
                if not is_distributed():
                    parameter.grad_dtype = torch.float32
        elif wide_sums:
            rounder = gradient_rounder(fmt)
            self._computation.on_computed(
                parameter, lambda weight: self._computation.keep(weight.register_hook(rounder))
            )
        else:
            round_sum = _RoundSum(fmt)
            self._computation.on_computed(
                parameter, lambda weight: self._computation.keep(weight.register_post_accumulate_grad_hook(round_sum))
            )

    def _give_main(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        """Replace rounded weights in a state dict by their master weights, so that a checkpoint is fp32 and exact."""
        for name, parameter in module.named_parameters(remove_duplicate=False):
            weight = self.by_parameter.get(parameter)
            if weight is None or prefix + name not in state:
                continue
            if weight.is_shadowed and weight.main.dtype is torch.float32:
                current = weight.parameter._version == weight.version
                state[prefix + name] = weight.main.detach() if current else parameter.detach().float()

    def _narrow_saved(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        """Give the weights and buffers in a state dict the dtype of their format."""
        for site, owner in module.named_modules():
            dtype = dtype_of(self._formats_of_modules.get(owner, "fp32"))
            for name in [*owner._parameters, *owner._buffers]:
                key = f"{prefix}{site}{'.' if site else ''}{name}"
                value = state.get(key)
                if isinstance(value, Tensor) and value.is_floating_point() and dtype is not None:
                    state[key] = value.detach().to(dtype)

    def _before_load(self, module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        self._loaded = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            weight = self.by_parameter.get(parameter)
            value = state.get(prefix + name)
            if weight is not None and weight.fmt is not None and isinstance(value, Tensor):
                self._loaded[parameter] = value

    def _after_load(self, module: nn.Module, keys: Any) -> None:
        with torch.no_grad():
            for parameter, value in self._loaded.items():
                weight = self.by_parameter[parameter]
                assert weight.fmt is not None
                if value.shape != parameter.shape:
                    continue  # torch itself reports it
                if parameter.dtype is torch.float32:
                    round_in_place(parameter, weight.fmt)
                if weight.is_shadowed:
                    weight.main.copy_(value if self._recipe.master_weights else parameter)
                weight.version = parameter._version
        self._loaded = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Weights:
        # A copied model has no optimizer, hence no main weights.
        copy = object.__new__(Weights)
        copy._recipe, copy._computation = self._recipe, self._computation
        copy.by_parameter, copy._loaded, copy._formats_of_modules = {}, {}, {}
        return copy


def copy_master_weights(model: nn.Module, recipe: Recipe) -> dict[Tensor, Tensor]:
    """Return fp32 copies of the weights that a recipe is about to narrow; none without master weights."""
    if not recipe.master_weights:
        return {}
    return {parameter: parameter.detach().float().clone() for parameter in _narrow_formats(model, recipe)}


def _narrow_formats(model: nn.Module, recipe: Recipe) -> dict[Tensor, str]:
    """Return the formats of the weights that the recipe keeps narrow."""
    formats = formats_of_parameters(model, recipe) if recipe.compute == "cast" else {}
    return {p: fmt for p, fmt in formats.items() if fmt != "fp32" and p.is_floating_point()}


@dataclass(frozen=True, slots=True)
class _RoundSum:
    """Rounds a parameter's gradient after each accumulation, as narrow storage would."""

    fmt: Format

    def __call__(self, parameter: Tensor) -> None:
        if parameter.grad is not None and parameter.grad.layout == torch.strided:
            round_in_place(parameter.grad, self.fmt)


def _set_grad_dtype(parameter: Tensor, dtype: torch.dtype) -> None:
    if parameter.grad_dtype is not dtype:
        grad, parameter.grad = parameter.grad, None
        parameter.grad_dtype = dtype
        parameter.grad = None if grad is None else grad.to(dtype)


def with_gradient(weights: Iterable[Weight]) -> list[Weight]:
    """Return the weights whose parameter has a gradient."""
    return [weight for weight in weights if weight.parameter.grad is not None]


def hand_over(weights: Iterable[Weight]) -> None:
    """Give each main weight the gradient of its parameter: the same tensor if the dtype fits, otherwise a copy.

    A second call renews the copies of gradients that were changed in between, for example by clipping.
    """
    for weight in weights:
        if not weight.is_shadowed:
            continue
        grad = weight.parameter.grad
        if grad is None or grad.dtype is weight.main.dtype:
            weight.main.grad = grad
        elif weight.main.grad is None or weight.grad_version != grad._version:
            weight.main.grad = grad.to(weight.main.dtype)
            weight.grad_version = grad._version


def first_nonfinite(weights: Sequence[Weight]) -> str | None:
    """Return the name of the first gradient with NaN or infinity, in the order of the backward pass, or None.

    It takes one pass over the memory and one transfer, however many tensors there are: if the sum of all is finite, so
    are the elements. Only if it is not are the tensors checked one by one.
    """
    grads = [_dense_grad(weight) for weight in weights]
    if not grads or _sums_are_finite(grads):
        return None
    for weight, grad in zip(reversed(weights), reversed(grads), strict=True):
        if not bool(torch.isfinite(grad).all()):
            return weight.name
    return None


def unscale(weights: Sequence[Weight], scale: float) -> None:
    """Divide all gradients by the loss scale, in place."""
    if scale == 1.0:
        return
    groups = defaultdict(list)
    for weight in weights:
        grad = weight.parameter.grad
        assert grad is not None
        if grad.is_sparse:
            grad.mul_(1.0 / scale)
        else:
            groups[grad.device, grad.dtype].append(grad)
    for grads in groups.values():
        foreach_mul_(grads, 1.0 / scale)


def _dense_grad(weight: Weight) -> Tensor:
    """Return the values of a gradient: those of a sparse one, or this rank's part of a sharded one."""
    grad = weight.parameter.grad
    assert grad is not None
    grad = local_part(grad)
    return grad.coalesce().values() if grad.is_sparse else grad


def _sums_are_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether all sums are finite; this waits once for each device."""
    sums: defaultdict[torch.device, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        if tensor.numel():  # a rank's part of sharded weights can be empty
            sums[tensor.device].append(tensor.detach().sum(dtype=torch.float32))
    return all(bool(torch.isfinite(torch.stack(of_device).sum())) for of_device in sums.values())


def agreed_overflow(overflow: str | None, device: torch.device) -> str | None:
    """Return the overflow that any rank has found, so that either all ranks step or none does."""
    distributed = torch.distributed
    if not is_distributed() or distributed.get_world_size() == 1:
        return overflow
    flag = torch.tensor([0.0 if overflow is None else 1.0], device=device)
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
    if not flag.item():
        return None
    names: list[str | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(names, overflow)
    return next(name for name in names if name is not None)
