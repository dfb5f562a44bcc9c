"""The bytes that a forward saves for backward, by site, before and after compression."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteBytes:
    """What one site saved. A tensor saved by several sites counts only at the first."""

    site: str
    bits: int
    num_tensors: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationReport:
    """What the latest training forward saved, without parameters and buffers.

    `bytes_before` is what autograd would have kept without compression, each piece of memory counted once;
    `bytes_after` is what is kept instead: codes, heads of groups, bit masks, and uncompressed tensors.
    """

    sites: tuple[SiteBytes, ...]

    @property
    def bytes_before(self) -> int:
        """The size without compression."""
        return sum(site.bytes_before for site in self.sites)

    @property
    def bytes_after(self) -> int:
        """The size with compression."""
        return sum(site.bytes_after for site in self.sites)

    @property
    def ratio(self) -> float:
        """The compression ratio; 1 if nothing was saved."""
        return self.bytes_before / self.bytes_after if self.bytes_after else 1.0

    def to_text(self) -> str:
        """Return the sites as a table, the total first."""
        if not self.sites:
            return "Nothing saved yet: no training forward has run."
        rows = [("site", "bits", "tensors", "before", "after", "ratio"), self._total()]
        rows += [
            (s.site, str(s.bits), str(s.num_tensors), _size(s.bytes_before), _size(s.bytes_after), _ratio(s))
            for s in self.sites
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(_line(row, widths) for row in rows)

    def _total(self) -> tuple[str, ...]:
        tensors = str(sum(s.num_tensors for s in self.sites))
        return "total", "", tensors, _size(self.bytes_before), _size(self.bytes_after), _ratio(self)

    def __str__(self) -> str:
        return self.to_text()


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    first, *rest = (
        cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()


def _size(num_bytes: int) -> str:
    return (
        f"{num_bytes} B"
        if num_bytes < 1000
        else f"{num_bytes / 1e3:.1f} kB"
        if num_bytes < 1e6
        else f"{num_bytes / 1e6:.1f} MB"
    )


def _ratio(of: SiteBytes | ActivationReport) -> str:
    return f"{of.bytes_before / of.bytes_after:.1f}x" if of.bytes_after else "-"
