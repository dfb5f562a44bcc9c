"""Converts a model to fixed point, and the handle of a converted model."""

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
from roundoff.precision.fixed.module_conversion import add_quantizers
from roundoff.precision.fixed.module_quantizers import QUANTIZERS, ModuleQuantizers, detach
from roundoff.precision.fixed.quantizer import Quantizer
from roundoff.precision.recipe.fixed_point_settings import KINDS, FixedPointSettings, Norms, TensorKind, covers
from roundoff.precision.recipe.tensor_setting import METHODS, Method, TensorSetting, with_fields

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


_SYNC_HANDLE = "_fixed_point_ranks"


def attach_to_root(model: nn.Module) -> None:
    """Synchronise scales after every training forward under DistributedDataParallel or FSDP2.

    Each becomes the largest of all ranks, as if one rank had seen all data.
    """
    model.__dict__[_SYNC_HANDLE] = model.register_forward_hook(_after_forward)


def detach_from_root(model: nn.Module) -> None:
    """Stop synchronising."""
    handle = model.__dict__.pop(_SYNC_HANDLE, None)
    if handle is not None:
        handle.remove()


def scales_of(model: nn.Module) -> list[Tensor]:
    """List the scales of a converted model, in the order of its modules."""
    found = []
    for module in model.modules():
        quantizers = module.__dict__.get(QUANTIZERS)
        if quantizers is not None:
            found += [module.get_submodule(child).get_buffer(each.buffer) for child, each in quantizers.each()]
    return found


def take_largest(scales: Sequence[Tensor]) -> None:
    """Set every scale to the largest of all ranks; a collective that every rank must call."""
    if not scales or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    with torch.no_grad():
        flat = torch.cat([scale.reshape(-1).float() for scale in scales])
        dist.all_reduce(flat, op=dist.ReduceOp.MAX)
        parts = flat.split([scale.numel() for scale in scales])
        for scale, part in zip(scales, parts, strict=True):
            scale.copy_(part.view(scale.shape))


def _after_forward(model: nn.Module, args: Any, output: Any) -> None:
    """Synchronise only where all ranks are certain to be at the same place: in a training forward under DDP or FSDP2.

    DDP broadcasts buffers only before a forward: without this, the scales would differ by rank in an evaluation of the
    bare model. With uneven inputs (`join`) a rank may already have finished, so nothing is done.
    """
    if not model.training or not torch.is_grad_enabled():
        return
    ddp = getattr(DistributedDataParallel, "_active_ddp_module", None)
    is_under_ddp = ddp is not None and ddp.module is model and not ddp._join_config.enable
    if is_under_ddp or isinstance(model, FSDPModule):
        take_largest(scales_of(model))


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
            `quantized` quantizes them on use. The statistics always accumulate in float.

    Raises:
        RecipeError: an override matches nothing in the model, or the model is already converted.
    """
    chosen = settings or FixedPointSettings()
    add_quantizers(model, chosen if norms is None else dataclasses.replace(chosen, norms=norms))
    attach_to_root(model)
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
        return [_row_of(quantizer, scale) for _, quantizer, scale in self._quantizers()]

    def describe(self) -> str:
        """Return the rows as a table. A tensor that is not `used` was read by other code, or never needed."""
        return as_table(self.rows())

    def num_nonfinite(self) -> dict[str, int]:
        """Return the number of NaN and infinities that each tensor has had so far, for those that had any."""
        counts = {quantizer.name: quantizer.num_nonfinite for _, quantizer, _ in self._quantizers()}
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
        quantizers = list(self._quantizers())
        for conditions, selects in ((names, _is_at), (types, _is_of_type)):
            if conditions is not None:
                quantizers = _select_entries(quantizers, _several(conditions), selects)
        chosen = [quantizer for _, quantizer, _ in quantizers if quantizer.kind in kinds]
        for quantizer in chosen:
            quantizer.use(dataclasses.replace(quantizer.setting, method=method))
        return len(chosen)

    def dump(self) -> dict[str, dict[str, Any]]:
        """Return the present setting of every tensor, by name, as plain values."""
        return {quantizer.name: quantizer.setting.to_dict() for _, quantizer, _ in self._quantizers()}

    def load(self, dumped: Mapping[str, Mapping[str, Any]]) -> None:
        """Set the settings that `dump` returned; scales stay as they are.

        Raises:
            RecipeError: a tensor is missing or unknown, or a setting is invalid; nothing is changed then.
        """
        for module in self.model.modules():
            found: ModuleQuantizers | None = module.__dict__.get(QUANTIZERS)
            while found and found.outputs and f"{found.outputs[0].forward.name}{len(found.outputs)}" in dumped:
                found.add_output(module)
        quantizers = {quantizer.name: quantizer for _, quantizer, _ in self._quantizers()}
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
        detach_from_root(self.model)

    def _quantizers(self) -> Iterator[tuple[nn.Module, Quantizer, Tensor]]:
        for module in self.model.modules():
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


_Entry = tuple[nn.Module, Quantizer, Tensor]


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
