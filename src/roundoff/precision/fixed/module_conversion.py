"""Converts an existing model to fixed point: registers scales and hooks on its modules, in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision.fixed.module_quantizers import (
    SITE,
    ModuleQuantizers,
    ParameterUse,
    QuantizerWithGradient,
    attach,
)
from roundoff.precision.fixed.quantizer import PassCounter, Quantizer
from roundoff.precision.recipe.fixed_point_settings import FixedPointSettings, TensorKind
from roundoff.precision.recipe.site_formats import is_norm, site_of

Norms = Literal["float", "quantized"]

SCALE = "fixed_scale_"
"""How the names of the buffers begin."""

# Modules that compute nothing of their own: what they return was quantized where it was made, or is a loss.
_ONLY_PASS_ON = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, nn.Identity, nn.Flatten,
    nn.Unflatten, nn.modules.loss._Loss, nn.ChannelShuffle, nn.PixelShuffle, nn.PixelUnshuffle,
)  # fmt: skip
_SPATIAL_AXES = {
    nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3, nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3,
    nn.BatchNorm2d: 2, nn.BatchNorm3d: 3, nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3,
}  # fmt: skip
_NUM_OUTPUTS = {nn.LSTM: 3, nn.GRU: 2, nn.RNN: 2, nn.LSTMCell: 2, nn.MultiheadAttention: 2}


def register_sites(model: nn.Module, settings: FixedPointSettings, *, norms: Norms) -> None:
    """Give every module of `model` that computes something its scales and hooks.

    Raises:
        RecipeError: an override matches nothing, the model is converted already, or quantized norms are asked for
            tensor by tensor while norms are to stay float.
    """
    if norms not in ("float", "quantized"):
        raise RecipeError.explain(f"norms = {norms!r} cannot be.", why="allowed: float, quantized.")
    if any(SITE in module.__dict__ for module in model.modules()):
        raise RecipeError.explain(
            f"{type(model).__name__} is converted to fixed point already.",
            why="its modules have scales.",
            fix="change it through its handle, FixedPointModel.of(model), or call remove() on that first.",
        )
    settings.check_fits((site_of(name), module) for name, module in model.named_modules())
    if norms == "float":
        _check_no_norm_overrides(settings)
    conversion = _Conversion(settings=settings, norms=norms, clock=PassCounter(), device=_device_of(model))
    for site, module in conversion.sites(model):
        attach(module, site)
        site.measure_parameters(module)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conversion:
    """What is the same for every module of a model."""

    settings: FixedPointSettings
    norms: Norms
    clock: PassCounter
    device: torch.device

    def sites(self, model: nn.Module) -> Iterator[tuple[ModuleQuantizers, nn.Module]]:
        """Make a site for each module that has one, and for the root, which begins a pass."""
        read_by_parent = {child for module in model.modules() for _, child in _never_called(module)}
        for name, module in model.named_modules():
            if module in read_by_parent:
                continue
            site = ModuleQuantizers(name=site_of(name), clock=self.clock)
            self._add_parameters(site, module, "")
            for child_name, child in _never_called(module):
                self._add_parameters(site, child, child_name)
            if self.norms == "quantized":
                self._add_statistics(site, module)
            if not isinstance(module, _ONLY_PASS_ON):
                for place in range(_NUM_OUTPUTS.get(type(module), 1)):
                    self._add_output(site, module, place)
            if site.parameters or site.outputs or module is model:
                yield site, module

    def _add_parameters(self, site: ModuleQuantizers, owner: nn.Module, child: str) -> None:
        if is_norm(owner) and self.norms == "float":
            return
        owner_site = ".".join(filter(None, (site.name, child)))
        for name, value in owner.named_parameters(recurse=False):
            if not value.is_floating_point():
                continue
            kind: TensorKind = "norm" if is_norm(owner) else "bias" if "bias" in name else "weight"
            pair = QuantizerWithGradient(
                self._slot(kind, owner, owner_site, name),
                self._slot("gradient", owner, owner_site, f"{name}_gradient"),
            )
            site.parameters.append(ParameterUse(child=child, name=name, pair=pair))

    def _add_statistics(self, site: ModuleQuantizers, module: nn.Module) -> None:
        if not is_norm(module):
            return
        for name in ("running_mean", "running_var"):
            if module._buffers.get(name) is not None:
                site.statistics[name] = self._slot("buffer", module, site.name, name)

    def _add_output(self, site: ModuleQuantizers, module: nn.Module, place: int) -> None:
        number = str(place or "")
        pair = QuantizerWithGradient(
            self._slot("activation", module, site.name, f"activation{number}"),
            self._slot("error", module, site.name, f"error{number}"),
        )
        usual = (self.settings.activation, self.settings.error)
        pair.is_exception = (pair.forward.setting, pair.backward.setting) != usual
        site.outputs.append(pair)

    def _slot(self, kind: TensorKind, owner: nn.Module, site: str, name: str) -> Quantizer:
        """Make a slot, and the buffer of its scale on the module that owns the tensor."""
        setting = self.settings.of(kind, site=site, module=owner)
        num_spatial = next((n for cls, n in _SPATIAL_AXES.items() if isinstance(owner, cls)), None)
        slot = Quantizer(
            name=f"{site or '<model>'}.{name}",
            kind=kind,
            setting=setting,
            buffer=f"{SCALE}{name}",
            clock=self.clock,
            channel_axis=None if num_spatial is None else -1 - num_spatial,
            is_set=setting.scale is not None,
        )
        num_channels = _num_channels(owner) if setting.granularity == "channel" else None
        shape = () if num_channels is None or kind not in ("activation", "error") else (num_channels,)
        first = torch.full(shape, setting.scale or 0.0, dtype=torch.float32, device=self.device)
        owner.register_buffer(slot.buffer, first)
        return slot


def _never_called(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children that hold parameters for `module` to read, and are never called themselves."""
    for name, child in module.named_children():
        if isinstance(child, nn.ParameterList | nn.ParameterDict):
            yield name, child
            yield from ((f"{name}.{below}", other) for below, other in _never_called(child))
        elif isinstance(module, nn.MultiheadAttention) and name == "out_proj":
            yield name, child


def _num_channels(module: nn.Module) -> int | None:
    """Return how many channels a module makes, where it says so; scales that are there at once survive replicas."""
    for name in ("out_channels", "out_features", "num_features", "num_channels", "embedding_dim"):
        found = getattr(module, name, None)
        if isinstance(found, int):
            return found
    return None


def _device_of(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in [*model.parameters(), *model.buffers()]), torch.device("cpu"))


def _check_no_norm_overrides(settings: FixedPointSettings) -> None:
    for table in (settings.types, settings.sites):
        for key, overrides in table.items():
            for kind in ("norm", "buffer"):
                if kind in overrides and overrides[kind].method != "none":
                    raise RecipeError.explain(
                        f"The override for '{key}' sets '{kind}', and norms are float.",
                        why="norms='float' leaves the parameters and statistics of norms alone.",
                        fix="convert with norms='quantized', or leave the override away.",
                    )
