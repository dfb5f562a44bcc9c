"""Converts an existing model to fixed point in place: adds scales and hooks to its modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision.fixed.module_quantizers import (
    QUANTIZERS,
    ModuleQuantizers,
    ParameterUse,
    QuantizerWithGradient,
    attach,
)
from roundoff.precision.fixed.quantizer import PassCounter, Quantizer
from roundoff.precision.recipe.fixed_point_settings import FixedPointSettings, TensorKind
from roundoff.precision.recipe.site_formats import is_norm, site_of

SCALE = "fixed_scale_"
"""Prefix of the names of the buffers."""

# Modules that compute nothing themselves: what they return was quantized where it was computed, or is a loss.
_ONLY_PASS_ON = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, nn.Identity, nn.Flatten,
    nn.Unflatten, nn.modules.loss._Loss, nn.ChannelShuffle, nn.PixelShuffle, nn.PixelUnshuffle,
)  # fmt: skip
_SPATIAL_AXES = {
    nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3, nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3,
    nn.BatchNorm2d: 2, nn.BatchNorm3d: 3, nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3,
}  # fmt: skip
_NUM_OUTPUTS = {nn.LSTM: 3, nn.GRU: 2, nn.RNN: 2, nn.LSTMCell: 2, nn.MultiheadAttention: 2}


def add_quantizers(model: nn.Module, settings: FixedPointSettings) -> None:
    """Add scales and hooks to every module of `model` that computes something.

    Raises:
        RecipeError: an override matches nothing, the model is already converted, or an override quantizes tensors of
            norms although `settings.norms` is `float`.
    """
    if any(QUANTIZERS in module.__dict__ for module in model.modules()):
        raise RecipeError.explain(
            f"{type(model).__name__} is already converted to fixed point.",
            why="its modules have scales.",
            fix="change it through its handle, FixedPointModel.of(model), or call remove() on the handle first.",
        )
    settings.check_fits((site_of(name), module) for name, module in model.named_modules())
    if settings.norms == "float":
        _check_no_norm_overrides(settings)
    conversion = _Conversion(settings=settings, clock=PassCounter(), device=_device_of(model))
    for quantizers, module in conversion.module_quantizers(model):
        attach(module, quantizers)
        quantizers.measure_parameters(module)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conversion:
    """The parts of a conversion that all modules of a model share."""

    settings: FixedPointSettings
    clock: PassCounter
    device: torch.device

    def module_quantizers(self, model: nn.Module) -> Iterator[tuple[ModuleQuantizers, nn.Module]]:
        """Yield the quantizers of each module that has any, and of the root, which starts a pass."""
        read_by_parent = {child for module in model.modules() for _, child in _never_called(module)}
        for name, module in model.named_modules():
            if module in read_by_parent:
                continue
            quantizers = ModuleQuantizers(name=site_of(name), clock=self.clock)
            self._add_parameters(quantizers, module, "")
            for child_name, child in _never_called(module):
                self._add_parameters(quantizers, child, child_name)
            if self.settings.norms == "quantized":
                self._add_statistics(quantizers, module)
            if not isinstance(module, _ONLY_PASS_ON):
                for place in range(_NUM_OUTPUTS.get(type(module), 1)):
                    self._add_output(quantizers, module, place)
            if quantizers.parameters or quantizers.outputs or module is model:
                yield quantizers, module

    def _add_parameters(self, quantizers: ModuleQuantizers, owner: nn.Module, child: str) -> None:
        if is_norm(owner) and self.settings.norms == "float":
            return
        owner_site = ".".join(filter(None, (quantizers.name, child)))
        for name, value in owner.named_parameters(recurse=False):
            if not value.is_floating_point():
                continue
            kind: TensorKind = "norm" if is_norm(owner) else "bias" if "bias" in name else "weight"
            pair = QuantizerWithGradient(
                self._add_quantizer(kind, owner, owner_site, name),
                self._add_quantizer("gradient", owner, owner_site, f"{name}_gradient"),
            )
            quantizers.parameters.append(ParameterUse(child=child, name=name, pair=pair))

    def _add_statistics(self, quantizers: ModuleQuantizers, module: nn.Module) -> None:
        if not is_norm(module):
            return
        for name in ("running_mean", "running_var"):
            if module._buffers.get(name) is not None:
                quantizers.statistics[name] = self._add_quantizer("buffer", module, quantizers.name, name)

    def _add_output(self, quantizers: ModuleQuantizers, module: nn.Module, place: int) -> None:
        number = str(place or "")
        pair = QuantizerWithGradient(
            self._add_quantizer("activation", module, quantizers.name, f"activation{number}"),
            self._add_quantizer("error", module, quantizers.name, f"error{number}"),
        )
        usual = (self.settings.activation, self.settings.error)
        pair.is_exception = (pair.forward.setting, pair.backward.setting) != usual
        quantizers.outputs.append(pair)

    def _add_quantizer(self, kind: TensorKind, owner: nn.Module, site: str, name: str) -> Quantizer:
        """Make a quantizer, and register the buffer of its scale on the module that owns the tensor."""
        setting = self.settings.of(kind, site=site, module=owner)
        num_spatial = next((n for cls, n in _SPATIAL_AXES.items() if isinstance(owner, cls)), None)
        quantizer = Quantizer(
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
        owner.register_buffer(quantizer.buffer, first)
        return quantizer


def _never_called(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children whose parameters `module` reads without calling them."""
    for name, child in module.named_children():
        if isinstance(child, nn.ParameterList | nn.ParameterDict):
            yield name, child
            yield from ((f"{name}.{below}", other) for below, other in _never_called(child))
        elif isinstance(module, nn.MultiheadAttention) and name == "out_proj":
            yield name, child


def _num_channels(module: nn.Module) -> int | None:
    """Return the number of output channels, where the module has such an attribute.

    Scales that have their final shape from the start survive DataParallel's replicas.
    """
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
                        f"The override for '{key}' sets '{kind}', but norms are float.",
                        why="norms='float' leaves the parameters and statistics of norms alone.",
                        fix="convert with norms='quantized', or remove the override.",
                    )
