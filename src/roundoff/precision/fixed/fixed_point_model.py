"""The handle of a model that trains in fixed point."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from roundoff.errors import RecipeError
from roundoff.precision.fixed.module_conversion import Norms, register_sites
from roundoff.precision.fixed.module_quantizers import SITE, ModuleQuantizers, detach
from roundoff.precision.fixed.quantizer import Quantizer
from roundoff.precision.recipe.fixed_point_settings import KINDS, FixedPointSettings, TensorKind, covers
from roundoff.precision.recipe.tensor_setting import METHODS, Method, TensorSetting, changed

# == The settings of a live model as a table.

_TITLES = ("tensor", "bits", "method", "range", "rounding", "granularity", "scale", "step", "used", "non-finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """One quantized tensor as it is now."""

    name: str
    kind: str
    setting: TensorSetting
    scales: tuple[float, ...]
    """One number, or one for each channel; empty before the first data."""
    was_used: bool
    """Whether it has been quantized since the conversion."""
    num_nonfinite: int


def as_table(rows: Sequence[TensorRow]) -> str:
    """Lay out rows under their titles; a scale that no data has set yet is `-`."""
    cells = [_TITLES, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_TITLES))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


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


# == Keeps the scales of several ranks equal: each becomes the largest of theirs, as if one rank had seen all
# == data.

_SYNC_HANDLE = "_fixed_point_ranks"


def attach_to_root(model: nn.Module) -> None:
    """Have scales synchronised after every training forward that DistributedDataParallel or FSDP2 runs."""
    model.__dict__[_SYNC_HANDLE] = model.register_forward_hook(_after_forward)


def detach_from_root(model: nn.Module) -> None:
    """Stop doing so."""
    handle = model.__dict__.pop(_SYNC_HANDLE, None)
    if handle is not None:
        handle.remove()


def scales_of(model: nn.Module) -> list[Tensor]:
    """List the scales of a converted model, in the order of its modules."""
    found = []
    for module in model.modules():
        site = module.__dict__.get(SITE)
        if site is not None:
            found += [module.get_submodule(child).get_buffer(slot.buffer) for child, slot in site.slots()]
    return found


def take_largest(scales: Sequence[Tensor]) -> None:
    """Write the largest of all ranks into every scale, in one collective that every rank must call."""
    if not scales or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    with torch.no_grad():
        flat = torch.cat([scale.reshape(-1).float() for scale in scales])
        dist.all_reduce(flat, op=dist.ReduceOp.MAX)
        parts = flat.split([scale.numel() for scale in scales])
        for scale, part in zip(scales, parts, strict=True):
            scale.copy_(part.view(scale.shape))


def _after_forward(model: nn.Module, args: Any, output: Any) -> None:
    """Synchronise where all ranks surely are at the same place: in a training forward under DDP or FSDP2.

    DDP broadcasts buffers before a forward; what this one has measured would differ by rank until the next, which an
    evaluation of the bare model never gets. With uneven inputs (`join`) a rank may be gone, and nothing is done.
    """
    if not model.training or not torch.is_grad_enabled():
        return
    ddp = getattr(DistributedDataParallel, "_active_ddp_module", None)
    is_under_ddp = ddp is not None and ddp.module is model and not ddp._join_config.enable
    if is_under_ddp or isinstance(model, FSDPModule):
        take_largest(scales_of(model))


def convert_to_fixed_point(
    model: nn.Module, settings: FixedPointSettings | None = None, *, norms: Norms = "float"
) -> FixedPointModel:
    """Make a model compute in fixed point, in place, and return the handle to look at it and change it.

    Parameters stay what they are, float master weights, and are quantized whenever a module uses them. The output of
    every module that computes something is quantized, too, except scalars (losses). On the way back, the gradient of
    each such output (its error) and of each parameter's use is quantized. Scales are buffers of the modules.

    Args:
        model: Any module. Tensors are quantized where modules use or return them; what happens between two functions
            inside one forward stays float.
        settings: How each kind of tensor is kept; 8 bits, biases 16, if None.
        norms: `float` leaves parameters and running statistics of norms alone; `quantized` quantizes them on use. The
            statistics always accumulate in float.

    Raises:
        RecipeError: an override matches nothing in the model, or the model is converted already.
    """
    register_sites(model, settings or FixedPointSettings(), norms=norms)
    attach_to_root(model)
    return FixedPointModel(model)


class FixedPointModel:
    """What one may ask and tell a converted model. It holds no state: `of` makes one for a copy of the model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Return the handle of a model that was converted, copied or unpickled.

        Raises:
            RecipeError: the model is not converted.
        """
        if not any(SITE in module.__dict__ for module in model.modules()):
            raise RecipeError.explain(
                f"{type(model).__name__} is not in fixed point.",
                why="none of its modules has scales.",
                fix="convert it: convert_to_fixed_point(model, settings)",
            )
        return cls(model)

    def rows(self) -> list[TensorRow]:
        """Return every quantized tensor with its setting, scale and count of non-finite elements."""
        return [_row_of(slot, scale) for _, slot, scale in self._slots()]

    def describe(self) -> str:
        """Return the same as a table. What is not `used` was read past its module, or never came up."""
        return as_table(self.rows())

    def num_nonfinite(self) -> dict[str, int]:
        """Return how many NaN and infinities each tensor has had so far, for those that had any."""
        counts = {slot.name: slot.num_nonfinite for _, slot, _ in self._slots()}
        return {name: count for name, count in counts.items() if count}

    def set_method(
        self,
        method: Method,
        *,
        names: Collection[str] | str | None = None,
        types: Collection[str | type[nn.Module]] | str | type[nn.Module] | None = None,
        tensors: Collection[TensorKind] | TensorKind | None = None,
    ) -> int:
        """Switch the method of the tensors that the conditions select, of all without any; return how many.

        A tensor must satisfy each condition that is given.

        Args:
            method: `none`, `auto` or `fixed`.
            names: Patterns of sites; what is below a matching module follows it.
            types: Classes or names of classes; a subclass counts.
            tensors: Kinds of tensors, such as `weight` or `error`.

        Raises:
            RecipeError: the method or a kind does not exist, or a name or type selects nothing.
        """
        _check_words("method", [method], METHODS)
        kinds = _several(tensors) if tensors is not None else list(KINDS)
        _check_words("tensors", kinds, KINDS)
        slots = list(self._slots())
        for conditions, selects in ((names, _is_at), (types, _is_of_type)):
            if conditions is not None:
                slots = _selected(slots, _several(conditions), selects)
        chosen = [slot for _, slot, _ in slots if slot.kind in kinds]
        for slot in chosen:
            slot.use(dataclasses.replace(slot.setting, method=method))
        return len(chosen)

    def dump(self) -> dict[str, dict[str, Any]]:
        """Return the present setting of every tensor, by name, as plain values."""
        return {slot.name: slot.setting.to_dict() for _, slot, _ in self._slots()}

    def load(self, dumped: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over settings that `dump` returned; scales stay as they are.

        Raises:
            RecipeError: a tensor is missing or unknown, or a setting cannot be; nothing is changed then.
        """
        for module in self.model.modules():
            site: ModuleQuantizers | None = module.__dict__.get(SITE)
            while site and site.outputs and f"{site.outputs[0].forward.name}{len(site.outputs)}" in dumped:
                site.add_output(module)
        slots = {slot.name: slot for _, slot, _ in self._slots()}
        if wrong := sorted(slots.keys() ^ dumped.keys()):
            raise RecipeError.explain(
                f"These settings are of another model: they disagree about '{wrong[0]}' and {len(wrong) - 1} more.",
                why=f"the model has {len(slots)} tensors, the settings {len(dumped)}.",
                fix="load what dump() returned of a model converted in the same way.",
            )
        defaults = type(slots[next(iter(slots))].setting)()
        loaded = {name: changed(defaults, dict(values), where=name) for name, values in dumped.items()}
        for name, setting in loaded.items():
            slots[name].use(setting)

    def synchronize(self) -> None:
        """Give every scale the largest value of all ranks; a collective that every rank must call.

        Under DistributedDataParallel this happens by itself after each training forward.
        """
        take_largest(scales_of(self.model))

    def remove(self) -> None:
        """Take hooks and scales off again; what stays is the float model with its trained master weights."""
        for module in self.model.modules():
            if SITE in module.__dict__:
                detach(module)
        detach_from_root(self.model)

    def _slots(self) -> Iterator[tuple[nn.Module, Quantizer, Tensor]]:
        for module in self.model.modules():
            site: ModuleQuantizers | None = module.__dict__.get(SITE)
            for child, slot in site.slots() if site else ():
                owner = module.get_submodule(child)
                yield owner, slot, owner.get_buffer(slot.buffer)


def _row_of(slot: Quantizer, scale: Tensor) -> TensorRow:
    """Read a slot and its scale; this waits for their device."""
    return TensorRow(
        name=slot.name,
        kind=slot.kind,
        setting=slot.setting,
        scales=tuple(scale.detach().float().reshape(-1).tolist()) if slot.is_set else (),
        was_used=slot.was_used,
        num_nonfinite=slot.num_nonfinite,
    )


_Entry = tuple[nn.Module, Quantizer, Tensor]


def _is_at(entry: _Entry, pattern: Any) -> bool:
    return covers(pattern, entry[1].name.rpartition(".")[0])


def _is_of_type(entry: _Entry, wanted: Any) -> bool:
    return any(wanted in (cls, cls.__name__) for cls in type(entry[0]).__mro__)


def _selected(entries: list[_Entry], conditions: list[Any], selects: Any) -> list[_Entry]:
    for condition in conditions:
        if not any(selects(entry, condition) for entry in entries):
            known = sorted({entry[1].name.rpartition(".")[0] for entry in entries})[:12]
            types = sorted({type(entry[0]).__name__ for entry in entries})
            raise RecipeError.explain(
                f"{condition!r} selects no tensor in fixed point.",
                why=f"there are the sites {', '.join(known)} with the types {', '.join(types)}.",
                fix="correct the name.",
            )
    return [entry for entry in entries if any(selects(entry, condition) for condition in conditions)]


def _several(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | type) else list(value)


def _check_words(what: str, words: Collection[object], allowed: Collection[str]) -> None:
    for word in words:
        if word not in allowed:
            raise RecipeError.explain(
                f"{what} = {word!r} cannot be.", why=f"allowed: {', '.join(allowed)}.", fix="correct the name."
            )
