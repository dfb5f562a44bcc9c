"""What was seen of each op of a step, added up on the device and read once at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from roundoff.formats import Format
from roundoff.sensitivity.rounding_statistics import NUM_SUMS, rounded_from, sums_of
from roundoff.sensitivity.sensitivity import Effect, Part

Groups = frozenset[frozenset[tuple[str, str]]]
"""Sites and ops that may have rounded a tensor: one of each group must have."""

_ABSMAX = NUM_SUMS
"""The column behind the sums: the largest magnitude."""


class Account(NamedTuple):
    """What effects are added up by: all calls of one function at one site."""

    site: str
    op: str
    part: Part
    rounded_by: Groups = frozenset()


@dataclass(slots=True)
class _Totals:
    """Of one account: a row for each format."""

    values: Tensor | None = None
    gradients: Tensor | None = None
    changes: Tensor | None = None


class Ledger:
    """The accounts of a step. Tensors come in, numbers stay on their device."""

    def __init__(self, formats: Sequence[Format]) -> None:
        self.formats = tuple(formats)
        self._accounts: dict[Account, _Totals] = {}

    def open(self, accounts: Iterable[Account]) -> None:
        """Keep the places of accounts: effects stand in the order of the step."""
        for account in accounts:
            self._accounts.setdefault(account, _Totals())

    def add_value(self, account: Account, x: Tensor) -> None:
        """Add a tensor that would be rounded."""
        totals = self._accounts[account]
        totals.values = _added(totals.values, self._rows(x))

    def add_gradient(self, accounts: Sequence[Account], gradient: Tensor) -> None:
        """Add a gradient that comes back to the op of these accounts, and would be rounded, too."""
        rows = self._rows(gradient)
        for totals in (self._accounts[account] for account in accounts):
            totals.gradients = _added(totals.gradients, rows)

    def add_change(
        self, account: Account, fmt: Format, *, alone: Tensor | None = None, together: Tensor | None = None
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
        values = _fetched(totals.values for totals in seen.values())
        gradients = _fetched(totals.gradients for totals in seen.values())
        changes = _fetched(totals.changes for totals in seen.values())
        return tuple(
            self._effect(account, nth, value[nth], gradient and gradient[nth], change[nth] if change else [0.0, 0.0])
            for account, value, gradient, change in zip(seen, values, gradients, changes, strict=True)
            for nth in range(len(self.formats))
        )

    def _effect(
        self, account: Account, nth: int, value: list[float], gradient: list[float] | None, change: list[float]
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


def _as_keys(groups: Groups) -> tuple[tuple[str, ...], ...]:
    return tuple(sorted(tuple(sorted(f"{site}:{op}" for site, op in group)) for group in groups))


def _added(before: Tensor | None, rows: Tensor) -> Tensor:
    if before is None:
        return rows
    total = before + rows.to(before.device)
    total[:, _ABSMAX] = torch.maximum(before[:, _ABSMAX], rows[:, _ABSMAX].to(before.device))
    return total


def _fetched(tensors: Iterable[Tensor | None]) -> list[Any]:
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
