"""How close the numbers of each site come to the limits of formats, from the summaries of its tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from roundoff.diagnose.numbers.format_ranges import ONE, range_of
from roundoff.diagnose.wording import largest_of
from roundoff.runs import HISTOGRAM_LENGTH, Rows, Run

DEEPEST = 40
"""The parts of a name after this many dots stay together."""
NARROW = ("bf16", "fp16", "e5m2", "e4m3")
"""The formats whose range is checked, the widest range first."""
LOSING = ("fp16",)
"""The formats for which elements that would become 0 are counted, if there are histograms; 8 bits need a scale."""

_COLUMNS = (
    "site", "phase", "output", "dtype", "num_elements", "min", "max", "num_nan", "num_posinf", "num_zero",
    "num_subnormal", "introduced_ulps", "histogram",
)  # fmt: skip
_COUNTED = {name: int(math.log2(range_of(name).smallest / 2)) + ONE for name in LOSING}
"""The first bucket of a histogram whose elements do not become 0 in a format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRange:
    """The range of the floating-point results of a site, or of everything below it, in the recorded steps."""

    num_tensors: int = 0
    num_nonfinite: int = 0
    """Tensors with NaN or +inf; -inf alone may come from a mask."""
    num_beyond: Mapping[str, int] = field(default_factory=dict)
    """By format: tensors with a finite number that is larger than the format's largest."""
    absmax: float = 0.0
    """The largest finite magnitude."""
    num_elements: int = 0
    num_zero: int = 0
    num_subnormal: int = 0
    """Elements that are subnormal in their own format: they have lost digits, and smaller ones become 0."""
    introduced_ulps: float | None = None
    """The largest error that an op introduced; None if that was not measured."""
    num_counted: float = 0.0
    """Nonzero elements of tensors with a histogram, without optimizer state, which is wide anyway."""
    num_lost: Mapping[str, float] = field(default_factory=dict)
    """By format: how many of these would become 0."""

    def share_lost(self, format_name: str) -> float | None:
        """Return the share of the nonzero elements that would become 0; None if nothing was counted."""
        return self.num_lost.get(format_name, 0.0) / self.num_counted if self.num_counted else None

    def share_beyond(self, format_name: str) -> float:
        """Return the share of the tensors that would overflow in a format."""
        return self.num_beyond.get(format_name, 0) / max(1, self.num_tensors)

    @property
    def subnormal_share(self) -> float:
        """The share of the elements that are subnormal."""
        return self.num_subnormal / max(1, self.num_elements)

    @property
    def zero_share(self) -> float:
        """The share of the elements that are 0."""
        return self.num_zero / max(1, self.num_elements)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteNode:
    """A module in the tree of modules, with the range of it and everything below it."""

    name: str
    """The last part of its path."""
    site: str
    total: SiteRange
    children: tuple[SiteNode, ...] = ()


def site_ranges(steps: Iterable[tuple[int, Run]]) -> dict[str, SiteRange]:
    """Return the range of every site in some of the `recorded_steps`, in the order in which sites first ran."""
    by_holder: dict[int, tuple[Run, list[int]]] = {}
    for step, holder in steps:
        by_holder.setdefault(id(holder), (holder, []))[1].append(step)
    tables = [holder.events(step=found, columns=_COLUMNS) for holder, found in by_holder.values()]
    if not tables:
        return {}
    table = Rows.concat(tables)
    is_float = table.texts("dtype").matches(lambda dtype: "float" in dtype)
    return _by_site(table.take(table.texts("output").starts_with("output") & is_float))


def site_tree(ranges: Mapping[str, SiteRange]) -> tuple[SiteNode, ...]:
    """Return the sites as a tree by the dots in their names, each with the merged range of what is below it."""
    return _level(list(ranges.items()), prefix="", depth=0)


def merge_ranges(ranges: Iterable[SiteRange]) -> SiteRange:
    """Merge ranges: sum the counts, and keep the largest of each measure."""
    known = list(ranges)
    measured = [each.introduced_ulps for each in known if each.introduced_ulps is not None]
    return SiteRange(
        num_tensors=sum(each.num_tensors for each in known),
        num_nonfinite=sum(each.num_nonfinite for each in known),
        num_beyond={name: sum(each.num_beyond.get(name, 0) for each in known) for name in NARROW},
        absmax=max((each.absmax for each in known), default=0.0),
        num_elements=sum(each.num_elements for each in known),
        num_zero=sum(each.num_zero for each in known),
        num_subnormal=sum(each.num_subnormal for each in known),
        introduced_ulps=max(measured, default=None),
        num_counted=sum(each.num_counted for each in known),
        num_lost={name: sum(each.num_lost.get(name, 0.0) for each in known) for name in LOSING},
    )


def _by_site(table: Rows) -> dict[str, SiteRange]:
    texts = table.texts("site")
    codes, first, groups = np.unique(texts.codes, return_index=True, return_inverse=True)

    def sums(values: npt.NDArray[Any]) -> list[Any]:
        found = np.zeros(len(codes), dtype=np.int64 if values.dtype.kind in "bi" else np.float64)
        np.add.at(found, groups, values)
        return found.tolist()

    def largest(values: npt.NDArray[Any]) -> list[float]:
        found = np.full(len(codes), np.nan)
        np.fmax.at(found, groups, values)
        return found.tolist()

    absmax = np.nan_to_num(np.fmax(np.abs(table.numbers("min")), np.abs(table.numbers("max"))), nan=0.0, posinf=np.inf)
    num_tensors = np.bincount(groups, minlength=len(codes)).tolist()
    num_nonfinite = sums(table.numbers("num_nan") + table.numbers("num_posinf") > 0)
    beyond = {name: sums(absmax > largest_of(name)) for name in NARROW}
    counts = {name: sums(table.numbers(name)) for name in ("num_elements", "num_zero", "num_subnormal")}
    absmaxes, introduced = largest(absmax), largest(table.numbers("introduced_ulps"))
    lost = {name: sums(values) for name, values in _count_lost(table).items()}
    return {
        texts.values[codes[at]]: SiteRange(
            num_tensors=num_tensors[at],
            num_nonfinite=num_nonfinite[at],
            num_beyond={name: beyond[name][at] for name in NARROW},
            absmax=absmaxes[at],
            num_elements=counts["num_elements"][at],
            num_zero=counts["num_zero"][at],
            num_subnormal=counts["num_subnormal"][at],
            introduced_ulps=None if math.isnan(introduced[at]) else introduced[at],
            num_counted=lost["counted"][at],
            num_lost={name: lost[name][at] for name in LOSING},
        )
        for at in np.argsort(first).tolist()
    }


def _count_lost(table: Rows) -> dict[str, npt.NDArray[np.float64]]:
    """Return the nonzero elements of each tensor, and how many of them become 0 in each format; 0 if unknown."""
    found = {name: np.zeros(table.num_rows) for name in ("counted", *LOSING)}
    places = np.flatnonzero(~table["histogram"].is_null & ~table.texts("phase").equals("optimizer"))
    if not len(places):
        return found
    counts = table.numbers("histogram")[places].view("<u2").reshape(-1, HISTOGRAM_LENGTH)
    seen = np.maximum(1, counts.sum(axis=1))  # large tensors are sampled
    sizes = (table.numbers("num_elements") - table.numbers("num_zero"))[places]
    found["counted"][places] = sizes
    for name in LOSING:
        found[name][places] = sizes * counts[:, : _COUNTED[name]].sum(axis=1) / seen
    return found


def _level(entries: Sequence[tuple[str, SiteRange]], *, prefix: str, depth: int) -> tuple[SiteNode, ...]:
    """Make one node of all entries that continue with the same part after the prefix."""
    groups: dict[str, list[tuple[str, SiteRange]]] = {}
    for site, total in entries:
        rest = site[len(prefix) :]
        name = rest.partition(".")[0] if depth < DEEPEST else rest
        groups.setdefault(name, []).append((site, total))
    nodes = []
    for name, members in groups.items():
        site = f"{prefix}{name}"
        below = [member for member in members if member[0] != site]
        children = _level(below, prefix=f"{site}.", depth=depth + 1) if below else ()
        nodes.append(SiteNode(name=name, site=site, total=merge_ranges(each for _, each in members), children=children))
    return tuple(nodes)
