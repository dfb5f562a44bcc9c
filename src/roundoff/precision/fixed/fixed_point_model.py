"""Converts a model to fixed point, and the handle of a converted model."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from roundoff.errors import RecipeError
from roundoff.precision.compute.sharded_weights import is_distributed, is_gathered
from roundoff.precision.fixed.module_quantizers import (
    QUANTIZERS,
    ModuleQuantizers,
    ParameterUse,
    QuantizerWithGradient,
    attach,
    detach,
)
from roundoff.precision.fixed.quantizer import PassCounter, Quantizer
from roundoff.precision.recipe.fixed_point_settings import (
    KINDS,
    METHODS,
    FixedPointSettings,
    Method,
    Norms,
    TensorKind,
    TensorSetting,
    covers,
    with_fields,
)
from roundoff.precision.recipe.site_formats import is_norm, site_of
from roundoff.torch_private import LossBase, is_synchronized_by_ddp
from roundoff.words import text_table


def convert_to_fixed_point(
    model: nn.Module, settings: FixedPointSettings | None = None, *, norms: Norms | None = None
) -> FixedPointModel:
    """Make a model compute in fixed point, in place, and return the handle to inspect and change it.

    Parameters remain float master weights and are quantized whenever a module uses them. The output of every module
    that computes something is quantized too, except scalars (losses). In backward, the gradient of each such output
    (its error) and of each use of a parameter is quantized. Scales are buffers of the modules.

    Args:
        model: Any module. Tensors are quantized where modules use or return them; values between two functions inside
            one forward stay float.
        settings: The settings of each kind of tensor; by default 8 bits, biases 16.
        norms: Replaces `settings.norms`: `float` leaves the parameters and running statistics of norms alone,
            `quantized` quantizes them on use, and the statistics accumulate in float; with `accumulated` they
            accumulate on quantized values, as in nics_fix_pt: each step starts from statistics that were rounded.

    Raises:
        RecipeError: an override matches nothing in the model, or the model is already converted.
    """
    chosen = settings or FixedPointSettings()
    add_quantizers(model, chosen if norms is None else dataclasses.replace(chosen, norms=norms))
    model.__dict__[_SYNC_HANDLE] = model.register_forward_hook(_after_forward)
    return FixedPointModel(model)


class FixedPointModel:
    """The handle of a converted model. It has no state of its own: `of` makes another one for a copy of the model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Return the handle of a converted model, or of a copy of one.

        Raises:
            RecipeError: the model is not converted.
        """
        if not any(QUANTIZERS in module.__dict__ for module in model.modules()):
            raise RecipeError.explain(
                f"{type(model).__name__} is not in fixed point.",
                why="none of its modules has scales.",
                fix="convert it: convert_to_fixed_point(model, settings)",
            )
        return cls(model)

    def rows(self) -> list[TensorRow]:
        """Return every quantized tensor with its setting, scale and number of non-finite elements."""
        return [_row_of(quantizer, scale) for _, quantizer, scale in _entries(self.model)]

    def describe(self) -> str:
        """Return the rows as a table. A tensor that is not `used` was read by other code, or never needed."""
        return as_table(self.rows())

    def num_nonfinite(self) -> dict[str, int]:
        """Return the number of NaN and infinities that each tensor has had so far, for those that had any."""
        counts = {quantizer.name: quantizer.num_nonfinite for _, quantizer, _ in _entries(self.model)}
        return {name: count for name, count in counts.items() if count}

    def set_method(
        self,
        method: Method,
        *,
        names: Collection[str] | str | None = None,
        types: Collection[str | type[nn.Module]] | str | type[nn.Module] | None = None,
        tensors: Collection[TensorKind] | TensorKind | None = None,
    ) -> int:
        """Switch the method of the tensors that satisfy all given conditions; return how many.

        Args:
            method: `none`, `auto` or `fixed`.
            names: Patterns of sites; modules below a matching module match too.
            types: Classes or names of classes; subclasses match too.
            tensors: Kinds of tensors, such as `weight` or `error`.

        Raises:
            RecipeError: the method or a kind is unknown, or a name or type matches nothing.
        """
        _check_words("method", [method], METHODS)
        kinds = _several(tensors) if tensors is not None else list(KINDS)
        _check_words("tensors", kinds, KINDS)
        quantizers = list(_entries(self.model))
        for conditions, selects in ((names, _is_at), (types, _is_of_type)):
            if conditions is not None:
                quantizers = _select_entries(quantizers, _several(conditions), selects)
        chosen = [quantizer for _, quantizer, _ in quantizers if quantizer.kind in kinds]
        for quantizer in chosen:
            quantizer.use(dataclasses.replace(quantizer.setting, method=method))
        return len(chosen)

    def dump(self) -> dict[str, dict[str, Any]]:
        """Return the present setting of every tensor, by name, as plain values."""
        return {quantizer.name: quantizer.setting.to_dict() for _, quantizer, _ in _entries(self.model)}

    def load(self, dumped: Mapping[str, Mapping[str, Any]]) -> None:
        """Set the settings that `dump` returned; scales stay as they are.

        Raises:
            RecipeError: a tensor is missing or unknown, or a setting is invalid; nothing is changed then.
        """
        for module in self.model.modules():
            found: ModuleQuantizers | None = module.__dict__.get(QUANTIZERS)
            while found and found.outputs and f"{found.outputs[0].forward.name}{len(found.outputs)}" in dumped:
                found.add_output(module)
        quantizers = {quantizer.name: quantizer for _, quantizer, _ in _entries(self.model)}
        if wrong := sorted(quantizers.keys() ^ dumped.keys()):
            raise RecipeError.explain(
                f"These settings belong to another model: '{wrong[0]}' and {len(wrong) - 1} more do not match.",
                why=f"the model has {len(quantizers)} tensors, the settings have {len(dumped)}.",
                fix="load what dump() returned for a model that was converted in the same way.",
            )
        defaults = type(quantizers[next(iter(quantizers))].setting)()
        loaded = {name: with_fields(defaults, dict(values), where=name) for name, values in dumped.items()}
        for name, setting in loaded.items():
            quantizers[name].use(setting)

    def synchronize(self) -> None:
        """Set every scale to the largest of all ranks; a collective that every rank must call.

        Under DistributedDataParallel this happens automatically after each training forward.
        """
        take_largest(scales_of(self.model))

    def remove(self) -> None:
        """Remove hooks and scales; the float model with its trained master weights remains."""
        for module in self.model.modules():
            if QUANTIZERS in module.__dict__:
                detach(module)
        handle = self.model.__dict__.pop(_SYNC_HANDLE, None)
        if handle is not None:
            handle.remove()


_Entry = tuple[nn.Module, Quantizer, Tensor]
"""A quantizer, the module that owns its scale, and the scale."""


def _entries(model: nn.Module) -> Iterator[_Entry]:
    for module in model.modules():
        found: ModuleQuantizers | None = module.__dict__.get(QUANTIZERS)
        for child, quantizer in found.each() if found else ():
            owner = module.get_submodule(child)
            yield owner, quantizer, owner.get_buffer(quantizer.buffer)


def _row_of(quantizer: Quantizer, scale: Tensor) -> TensorRow:
    """Read a quantizer and its scale, which waits for their device."""
    return TensorRow(
        name=quantizer.name,
        kind=quantizer.kind,
        setting=quantizer.setting,
        scales=tuple(scale.detach().float().reshape(-1).tolist()) if quantizer.is_set else (),
        was_used=quantizer.was_used,
        num_nonfinite=quantizer.num_nonfinite,
    )


def _is_at(entry: _Entry, pattern: Any) -> bool:
    return covers(pattern, entry[1].name.rpartition(".")[0])


def _is_of_type(entry: _Entry, wanted: Any) -> bool:
    return any(wanted in (cls, cls.__name__) for cls in type(entry[0]).__mro__)


def _select_entries(entries: list[_Entry], conditions: list[Any], selects: Any) -> list[_Entry]:
    for condition in conditions:
        if not any(selects(entry, condition) for entry in entries):
            known = sorted({entry[1].name.rpartition(".")[0] for entry in entries})[:12]
            types = sorted({type(entry[0]).__name__ for entry in entries})
            raise RecipeError.explain(
                f"{condition!r} matches no tensor in fixed point.",
                why=f"the sites are {', '.join(known)}, their types {', '.join(types)}.",
            )
    return [entry for entry in entries if any(selects(entry, condition) for condition in conditions)]


def _several(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | type) else list(value)


def _check_words(what: str, words: Collection[object], allowed: Collection[str]) -> None:
    for word in words:
        if word not in allowed:
            raise RecipeError.explain(f"{what} = {word!r} is invalid.", why=f"allowed: {', '.join(allowed)}.")


_SYNC_HANDLE = "_fixed_point_ranks"


def scales_of(model: nn.Module) -> list[Tensor]:
    """List the scales of a converted model, in the order of its modules."""
    return [scale for _, _, scale in _entries(model)]


def take_largest(scales: Sequence[Tensor]) -> None:
    """Set every scale to the largest of all ranks; a collective that every rank must call."""
    if not scales or not is_distributed() or dist.get_world_size() == 1:
        return
    with torch.no_grad():
        flat = torch.cat([scale.reshape(-1).to(scales[0].device, torch.float32) for scale in scales])
        dist.all_reduce(flat, op=dist.ReduceOp.MAX)
        parts = flat.split([scale.numel() for scale in scales])
        for scale, part in zip(scales, parts, strict=True):
            scale.copy_(part.view(scale.shape))


def _after_forward(model: nn.Module, args: Any, output: Any) -> None:
    """Set each scale to the largest of all ranks after a training forward, as if one rank had seen all data.

    Only under DDP or FSDP2, where all ranks are certain to be at the same place.
    DDP broadcasts buffers only before a forward: without this, the scales would differ by rank in an evaluation of the
    bare model. With uneven inputs (`join`) a rank may already have finished, so nothing is done.
    """
    if not model.training or not torch.is_grad_enabled():
        return
    if is_synchronized_by_ddp(model) or is_gathered(model):
        take_largest(scales_of(model))


_TITLES = ("tensor", "bits", "method", "range", "rounding", "granularity", "scale", "step", "used", "non-finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """The present state of one quantized tensor."""

    name: str
    kind: str
    setting: TensorSetting
    scales: tuple[float, ...]
    """One scale, or one for each channel; empty before the first data."""
    was_used: bool
    """Whether it has been quantized since the conversion."""
    num_nonfinite: int


def as_table(rows: Sequence[TensorRow]) -> str:
    """Format rows as a table; a scale that is not set yet is `-`."""
    return text_table([_TITLES, *map(_cells, rows)], left=_TITLES, ruled=False, width=sys.maxsize)


def _cells(row: TensorRow) -> tuple[str, ...]:
    setting = row.setting
    if setting.method == "none":
        return (row.name, "-", "none", "-", "-", "-", "-", "-", "-", str(row.num_nonfinite))
    compat = f" ({setting.compat})" if setting.compat else ""
    chosen = f"{setting.range} {setting.percentile:g}" if setting.range == "percentile" else setting.range
    return (
        row.name,
        f"{setting.bits}{compat}",
        setting.method,
        f"{chosen}, float" if setting.float_scale else chosen,
        setting.rounding,
        setting.granularity,
        _span(row.scales),
        _span([setting.step_of(scale) for scale in row.scales]),
        "yes" if row.was_used else "no",
        str(row.num_nonfinite),
    )


def _span(values: Sequence[float]) -> str:
    if not values:
        return "-"
    lowest, highest = min(values), max(values)
    return f"{lowest:g}" if lowest == highest else f"{lowest:g} .. {highest:g}"


# -- the conversion, module by module ----------------------------------------------------------------------------------


SCALE = "fixed_scale_"
"""Prefix of the names of the buffers."""

# Modules that compute nothing themselves: what they return was quantized where it was computed, or is a loss.
_ONLY_PASS_ON = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, nn.Identity, nn.Flatten,
    nn.Unflatten, LossBase, nn.ChannelShuffle, nn.PixelShuffle, nn.PixelUnshuffle,
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
            quantizers = ModuleQuantizers(
                name=site_of(name), clock=self.clock, accumulates_rounded=self.settings.norms == "accumulated"
            )
            self._add_parameters(quantizers, module, "")
            for child_name, child in _never_called(module):
                self._add_parameters(quantizers, child, child_name)
            if self.settings.norms != "float":
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
