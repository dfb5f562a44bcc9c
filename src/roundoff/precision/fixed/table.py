"""The settings of a live model as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roundoff.precision.fixed.setting import TensorSetting

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
