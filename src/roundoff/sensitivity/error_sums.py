"""Sums over a tensor and its rounding error, added up per op on the device and read once at the end of the step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from roundoff.formats import BlockFormat, Format, ScaledBlocks, round_to
from roundoff.kernels.compiled import where_fp64_is
from roundoff.sensitivity.effects import LossEffect, OpPart, Rounded

NUM_SUMS = 9
"""Counts of elements: all, finite, that overflow, nonzero, that become 0, that become subnormal; then the sums of the
relative error, of the squares, and of the squared error."""
_CHUNK = 1 << 15
"""Elements at a time on a CPU, so that intermediate results stay in the cache."""


def sums_of(x: Tensor, fmt: Format) -> Tensor:
    """Round a tensor and return `NUM_SUMS` numbers about that in fp64, on its device, without waiting for it.

    >>> from roundoff.formats import format_named
    >>> sums = sums_of(torch.tensor([1.0, 1e-9, 1e5]), format_named("fp16"))
    >>> rounded_from(sums.tolist()).overflow
    0.3333333333333333
    """
    x = where_fp64_is(x.detach())
    total = torch.zeros(NUM_SUMS, dtype=torch.float64, device=x.device)
    sums = _sums_within if _is_within(x, fmt) else _sums
    for pieces in _pieces(x, round_to(x, fmt), *_limits(x, fmt)):
        total += sums(*pieces, eps=fmt.eps)
    return total


def _is_within(x: Tensor, fmt: Format) -> bool:
    """Whether nothing exceeds the format's largest number; checked only on a CPU, where it means no waiting."""
    if not x.is_cpu or not x.numel() or isinstance(fmt, BlockFormat | ScaledBlocks):
        return False
    least, most = torch.aminmax(x)
    return bool(-fmt.largest <= least) and bool(most <= fmt.largest)


def _sums_within(x: Tensor, result: Tensor, largest: Tensor, smallest_normal: Tensor, *, eps: float) -> Tensor:
    """Return the same as `_sums` in half the time, for numbers that do not overflow."""
    error = result - x
    length, nonzero, left = x.numel(), int(torch.count_nonzero(x)), int(torch.count_nonzero(result))
    small = int(torch.count_nonzero(result.abs() < smallest_normal)) - (length - left)
    relative = float((error / x).abs_().nan_to_num_(0.0, posinf=0.0).sum(dtype=torch.float64))
    signal, error = x.double(), error.double()
    counts = [length, length, 0, nonzero, nonzero - left, small, relative / eps]
    return torch.tensor(
        [*counts, float(torch.dot(signal, signal)), float(torch.dot(error, error))], dtype=torch.float64
    )


def inner_product(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner product of two tensors of the same shape in fp64; non-finite products count as 0."""
    x, y = where_fp64_is(x.detach()), where_fp64_is(y.detach())
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for one, other in _pieces(x, y):
        product = one.double() * other.double()
        total += product.nan_to_num_(0.0, posinf=0.0, neginf=0.0).sum()
    return total


def _sums(x: Tensor, result: Tensor, largest: Tensor, smallest_normal: Tensor, *, eps: float) -> Tensor:
    error = result - x
    magnitude, rounded = x.abs(), result.abs()
    is_finite, kept = torch.isfinite(x), torch.isfinite(error)
    nonzero = (x != 0) & is_finite
    overflows = is_finite & (~kept | ((magnitude > rounded) & (magnitude > largest)))
    becomes_zero = nonzero & (result == 0)
    becomes_subnormal = nonzero & (rounded < smallest_normal) & ~becomes_zero
    error.masked_fill_(~kept, 0.0)
    # 0 / 0 where both are 0 becomes 0
    relative = (error.abs() / magnitude).nan_to_num_(0.0, posinf=0.0)
    signal = x.masked_fill(~kept, 0.0).double()
    error = error.double()
    counts = [torch.count_nonzero(count) for count in (is_finite, overflows, nonzero, becomes_zero, becomes_subnormal)]
    return torch.stack(
        [
            error.new_full((), x.numel()),
            *(count.double() for count in counts),
            relative.sum(dtype=torch.float64) / eps,
            torch.dot(signal, signal),
            torch.dot(error, error),
        ]
    )


def _pieces(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """Yield tensors together in flat pieces; those with one number go with every piece."""
    length = tensors[0].numel()
    size = _CHUNK if tensors[0].is_cpu else max(length, 1)
    flat = [each.reshape(-1) if each.numel() == length else each for each in tensors]
    for start in range(0, length, size):
        yield [each[start : start + size] if each.dim() else each for each in flat]


def rounded_from(sums: list[float]) -> Rounded:
    """Return the shares and ratios from the sums of one tensor, or of several added up."""
    elements, finite, overflow, nonzero, becomes_zero, becomes_subnormal, relative, signal, noise = sums
    return Rounded(
        num_elements=int(elements),
        overflow=_share(overflow, finite),
        underflow=_share(becomes_zero, nonzero),
        subnormal=_share(becomes_subnormal, nonzero),
        ulps=_share(relative, nonzero),
        snr_db=_decibels(signal, noise),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _limits(x: Tensor, fmt: Format) -> tuple[Tensor, Tensor]:
    """Return the largest number and the smallest normal number of the format, or of each element's block."""
    if not isinstance(fmt, BlockFormat) or not x.dim():
        return x.new_tensor(fmt.largest), x.new_tensor(fmt.smallest_normal)
    rows = x.movedim(fmt.axis, -1).abs()
    length = rows.shape[-1]
    rows = rows.masked_fill(~torch.isfinite(rows), 0.0)
    blocks = F.pad(rows, (0, -length % fmt.block_size)).unflatten(-1, (-1, fmt.block_size))
    exponent = torch.frexp(blocks.amax(-1, keepdim=True)).exponent - 1 - fmt.element.max_exponent
    scale = torch.ldexp(torch.ones_like(blocks), exponent.clamp(-127, 127))
    scale = scale.flatten(-2)[..., :length].movedim(-1, fmt.axis)
    return scale * fmt.element.largest, scale * fmt.element.smallest_normal


OpGroups = frozenset[frozenset[tuple[str, str]]]
"""Sites and ops that may have rounded a tensor: it is rounded if one of each group has."""

_ABSMAX = NUM_SUMS
"""The column after the sums: the largest magnitude."""


class EffectKey(NamedTuple):
    """What effects are added up by: one kind of tensor in all calls of one function at one site."""

    site: str
    op: str
    part: OpPart
    rounded_by: OpGroups = frozenset()


@dataclass(slots=True)
class _Totals:
    """The sums of one key: a row for each format."""

    values: Tensor | None = None
    gradients: Tensor | None = None
    changes: Tensor | None = None


class ErrorSums:
    """The sums of a step. Tensors go in, and the sums stay on their device until `effects` reads them."""

    def __init__(self, formats: Sequence[Format]) -> None:
        self.formats = tuple(formats)
        self._sums: dict[EffectKey, _Totals] = {}

    def open(self, keys: Iterable[EffectKey]) -> None:
        """Reserve the places of keys, so that effects are in the order of the step."""
        for key in keys:
            self._sums.setdefault(key, _Totals())

    def add_value(self, key: EffectKey, x: Tensor) -> None:
        """Add a tensor that would be rounded."""
        totals = self._sums[key]
        totals.values = _add_rows(totals.values, self._rows(x))

    def add_gradient(self, keys: Sequence[EffectKey], gradient: Tensor) -> None:
        """Add a gradient that arrives at the op of these keys, and would be rounded as well."""
        rows = self._rows(gradient)
        for totals in (self._sums[key] for key in keys):
            totals.gradients = _add_rows(totals.gradients, rows)

    def add_change(
        self, key: EffectKey, fmt: Format, *, alone: Tensor | None = None, together: Tensor | None = None
    ) -> None:
        """Add the change of the loss by rounding to a format, alone and with everything rounded."""
        totals = self._sums[key]
        for column, change in enumerate((alone, together)):
            if change is None:
                continue
            if totals.changes is None:
                totals.changes = torch.zeros(len(self.formats), 2, dtype=torch.float64, device=change.device)
            totals.changes[self.formats.index(fmt), column] += change

    def effects(self) -> tuple[LossEffect, ...]:
        """Return one effect per format for every key with a value."""
        seen = {key: totals for key, totals in self._sums.items() if totals.values is not None}
        values = _fetch_lists(totals.values for totals in seen.values())
        gradients = _fetch_lists(totals.gradients for totals in seen.values())
        changes = _fetch_lists(totals.changes for totals in seen.values())
        return tuple(
            self._effect(key, nth, value[nth], gradient and gradient[nth], change[nth] if change else [0.0, 0.0])
            for key, value, gradient, change in zip(seen, values, gradients, changes, strict=True)
            for nth in range(len(self.formats))
        )

    def _effect(
        self, key: EffectKey, nth: int, value: list[float], gradient: list[float] | None, change: list[float]
    ) -> LossEffect:
        fmt = self.formats[nth]
        return LossEffect(
            site=key.site,
            op=key.op,
            part=key.part,
            fmt=fmt.name,
            loss_change=change[0],
            part_of_all=change[1],
            value=rounded_from(value[:NUM_SUMS]),
            gradient=None if gradient is None else rounded_from(gradient[:NUM_SUMS]),
            absmax=value[_ABSMAX],
            gradient_absmax=None if gradient is None else gradient[_ABSMAX],
            rounded_by=tuple(sorted(tuple(sorted(f"{site}:{op}" for site, op in group)) for group in key.rounded_by)),
        )

    def _rows(self, x: Tensor) -> Tensor:
        x = where_fp64_is(x.detach())
        magnitude = x.abs().nan_to_num_(0.0, posinf=0.0)
        largest = magnitude.amax().double() if x.numel() else magnitude.new_zeros((), dtype=torch.float64)
        rows = torch.stack([sums_of(x, fmt) for fmt in self.formats])
        return torch.cat([rows, largest.expand(len(self.formats), 1)], dim=1)


def _add_rows(before: Tensor | None, rows: Tensor) -> Tensor:
    if before is None:
        return rows
    total = before + rows.to(before.device)
    total[:, _ABSMAX] = torch.maximum(before[:, _ABSMAX], rows[:, _ABSMAX].to(before.device))
    return total


def _fetch_lists(tensors: Iterable[Tensor | None]) -> list[Any]:
    """Return tensors of one shape as lists, with one transfer per device."""
    found = list(tensors)
    by_device: dict[torch.device, list[int]] = {}
    for place, x in enumerate(found):
        if x is not None:
            by_device.setdefault(x.device, []).append(place)
    lists: list[Any] = [None] * len(found)
    for places in by_device.values():
        for place, numbers in zip(
            places, torch.stack([x for x in map(found.__getitem__, places) if x is not None]).tolist(), strict=True
        ):
            lists[place] = numbers
    return lists
