"""Counts and sums over a tensor and what a format makes of it, kept on its device until they are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from roundoff.formats import BlockFormat, Format, round_to
from roundoff.sensitivity.effects import Effect, Part, Rounded

NUM_SUMS = 9
"""Elements; finite ones; those that overflow; other than 0; that become 0; that become subnormal; then sums of the
relative error, of the squares, and of the squared error."""
_CHUNK = 1 << 15
"""Elements at a time on a CPU: what comes in between stays in the cache."""


def sums_of(x: Tensor, fmt: Format) -> Tensor:
    """Round a tensor and return `NUM_SUMS` numbers about that in fp64, on its device; nothing is waited for.

    >>> from roundoff.formats import format_named
    >>> sums = sums_of(torch.tensor([1.0, 1e-9, 1e5]), format_named("fp16"))
    >>> rounded_from(sums.tolist()).overflow
    0.3333333333333333
    """
    x = x.detach()
    total = torch.zeros(NUM_SUMS, dtype=torch.float64, device=x.device)
    sums = _sums_within if _is_within(x, fmt) else _sums
    for pieces in _pieces(x, round_to(x, fmt), *_limits(x, fmt)):
        total += sums(*pieces, eps=fmt.eps)
    return total


def _is_within(x: Tensor, fmt: Format) -> bool:
    """Say whether nothing is beyond the format's largest number; only asked where the answer need not be waited for."""
    if not x.is_cpu or not x.numel() or isinstance(fmt, BlockFormat):
        return False
    least, most = torch.aminmax(x)
    return bool(-fmt.largest <= least) and bool(most <= fmt.largest)


def _sums_within(x: Tensor, result: Tensor, largest: Tensor, smallest_normal: Tensor, *, eps: float) -> Tensor:
    """Return what `_sums` does, in half the time, for numbers that do not overflow."""
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
    """Return the sum of the products of two tensors of one shape, in fp64; what is not finite counts as 0."""
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for one, other in _pieces(x.detach(), y.detach()):
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
    # 0 / 0 where both are 0
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
    """Give tensors side by side in flat pieces; those of one number go with every piece."""
    length = tensors[0].numel()
    size = _CHUNK if tensors[0].is_cpu else max(length, 1)
    flat = [each.reshape(-1) if each.numel() == length else each for each in tensors]
    for start in range(0, length, size):
        yield [each[start : start + size] if each.dim() else each for each in flat]


def rounded_from(sums: list[float]) -> Rounded:
    """Return what the sums of one tensor, or of several added up, say."""
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
    """Return the largest number and the smallest normal one: of the format, or of each element's block."""
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
"""Sites and ops that may have rounded a tensor: one of each group must have."""

_ABSMAX = NUM_SUMS
"""The column behind the sums: the largest magnitude."""


class EffectKey(NamedTuple):
    """What effects are added up by: all calls of one function at one site."""

    site: str
    op: str
    part: Part
    rounded_by: OpGroups = frozenset()


@dataclass(slots=True)
class _Totals:
    """Of one account: a row for each format."""

    values: Tensor | None = None
    gradients: Tensor | None = None
    changes: Tensor | None = None


class ErrorSums:
    """The accounts of a step. Tensors come in, numbers stay on their device."""

    def __init__(self, formats: Sequence[Format]) -> None:
        self.formats = tuple(formats)
        self._accounts: dict[EffectKey, _Totals] = {}

    def open(self, accounts: Iterable[EffectKey]) -> None:
        """Keep the places of accounts: effects stand in the order of the step."""
        for account in accounts:
            self._accounts.setdefault(account, _Totals())

    def add_value(self, account: EffectKey, x: Tensor) -> None:
        """Add a tensor that would be rounded."""
        totals = self._accounts[account]
        totals.values = _add_rows(totals.values, self._rows(x))

    def add_gradient(self, accounts: Sequence[EffectKey], gradient: Tensor) -> None:
        """Add a gradient that comes back to the op of these accounts, and would be rounded, too."""
        rows = self._rows(gradient)
        for totals in (self._accounts[account] for account in accounts):
            totals.gradients = _add_rows(totals.gradients, rows)

    def add_change(
        self, account: EffectKey, fmt: Format, *, alone: Tensor | None = None, together: Tensor | None = None
    ) -> None:
        """Add what rounding to a format moves the loss by, alone and where everything is rounded."""
        totals = self._accounts[account]
        for column, change in enumerate((alone, together)):
            if change is None:
                continue
            if totals.changes is None:
                totals.changes = torch.zeros(len(self.formats), 2, dtype=torch.float64, device=change.device)
            totals.changes[self.formats.index(fmt), column] += change

    def effects(self) -> tuple[Effect, ...]:
        """Return every account of which something was seen, as one effect for each format."""
        seen = {account: totals for account, totals in self._accounts.items() if totals.values is not None}
        values = _fetch_lists(totals.values for totals in seen.values())
        gradients = _fetch_lists(totals.gradients for totals in seen.values())
        changes = _fetch_lists(totals.changes for totals in seen.values())
        return tuple(
            self._effect(account, nth, value[nth], gradient and gradient[nth], change[nth] if change else [0.0, 0.0])
            for account, value, gradient, change in zip(seen, values, gradients, changes, strict=True)
            for nth in range(len(self.formats))
        )

    def _effect(
        self, account: EffectKey, nth: int, value: list[float], gradient: list[float] | None, change: list[float]
    ) -> Effect:
        fmt = self.formats[nth]
        return Effect(
            site=account.site,
            op=account.op,
            part=account.part,
            fmt=fmt.name,
            loss_change=change[0],
            part_of_all=change[1],
            value=rounded_from(value[:NUM_SUMS]),
            gradient=None if gradient is None else rounded_from(gradient[:NUM_SUMS]),
            absmax=value[_ABSMAX],
            gradient_absmax=None if gradient is None else gradient[_ABSMAX],
            rounded_by=_as_keys(account.rounded_by),
        )

    def _rows(self, x: Tensor) -> Tensor:
        magnitude = x.detach().abs().nan_to_num_(0.0, posinf=0.0)
        largest = magnitude.amax().double() if x.numel() else magnitude.new_zeros((), dtype=torch.float64)
        rows = torch.stack([sums_of(x, fmt) for fmt in self.formats])
        return torch.cat([rows, largest.expand(len(self.formats), 1)], dim=1)


def _as_keys(groups: OpGroups) -> tuple[tuple[str, ...], ...]:
    return tuple(sorted(tuple(sorted(f"{site}:{op}" for site, op in group)) for group in groups))


def _add_rows(before: Tensor | None, rows: Tensor) -> Tensor:
    if before is None:
        return rows
    total = before + rows.to(before.device)
    total[:, _ABSMAX] = torch.maximum(before[:, _ABSMAX], rows[:, _ABSMAX].to(before.device))
    return total


def _fetch_lists(tensors: Iterable[Tensor | None]) -> list[Any]:
    """Return tensors of one shape as lists, fetched from each device at once."""
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
