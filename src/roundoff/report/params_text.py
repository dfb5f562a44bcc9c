"""The tensors of a checkpoint or a model as text: totals and problems first, then one line per tensor."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.checkpoints.checkpoint import JsonValue
from roundoff.checkpoints.inventory import Inventory, InventoryItem
from roundoff.report.findings_text import WIDTH

ORDER = ("parameter", "trainable", "frozen", "buffer", "optimizer", "other")
MAX_TROUBLE = 10
MAX_SETTINGS = 6
MIN_NAME = 16


def params_text(inventory: Inventory, *, values: bool = False, optimizer: bool = False, width: int = WIDTH) -> str:
    """Lay out an inventory.

    Args:
        inventory: what to show.
        values: whether to show mean, std, min and max of every tensor.
        optimizer: whether to list the optimizer's tensors, too; they always count.
        width: of the screen.
    """
    lines = [f"{inventory.source}  {inventory.format}, {_format_count(len(inventory.items), 'tensor')}"]
    lines += _totals(inventory.items)
    lines += _settings(inventory.settings, width)
    lines += _trouble("not finite", [f"{item.name}: {_nonfinite(item)}" for item in inventory.items if item.is_broken])
    lines += _trouble("all zero", [item.name for item in inventory.items if item.is_zero and _is_weight(item)])
    listed = [item for item in inventory.items if optimizer or item.kind != "optimizer"]
    if listed:
        lines += ["", *_table(listed, values=values, width=width)]
    if len(listed) < len(inventory.items):
        lines.append(f"{len(inventory.items) - len(listed)} of the optimizer: --optimizer lists them")
    return "\n".join(line[:width] for line in lines)


def _totals(items: Sequence[InventoryItem]) -> list[str]:
    rows = []
    for kind in ORDER:
        of_kind = [item for item in items if item.kind == kind]
        if of_kind:
            elements = f"{sum(item.num_elements for item in of_kind):,} elements"
            size = _bytes(sum(item.num_bytes for item in of_kind))
            rows.append((f"  {kind}", _format_count(len(of_kind), "tensor"), elements, size))
    return _align_columns(rows, right={1, 2, 3}) if rows else []


def _settings(settings: dict[str, JsonValue], width: int) -> list[str]:
    """Show some plain settings in one line, those that are nested least first."""
    names = sorted(settings, key=lambda name: name.count("."))
    plain = [f"{name} {settings[name]}" for name in names if isinstance(settings[name], bool | int | float | str)]
    if not plain:
        return []
    shown = [text for text in plain if len(text) < width // 3][:MAX_SETTINGS]
    while shown and len(line := f"  settings   {', '.join(shown)}{_more(len(settings) - len(shown))}") > width:
        shown.pop()
    return [line] if shown else []


def _trouble(label: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    first, *further = names[:MAX_TROUBLE]
    lines = [f"  {label:10} {first}", *(f"  {'':10} {name}" for name in further)]
    return [*lines, f"  {'':10} and {len(names) - MAX_TROUBLE:,} more"] if len(names) > MAX_TROUBLE else lines


def _table(items: Sequence[InventoryItem], *, values: bool, width: int) -> list[str]:
    header = ("name", "kind", "dtype", "shape", *(("mean", "std", "min", "max") if values else ("elements",)), "")
    rows = [header, *(_cells(item, values=values) for item in items)]
    others = sum(max(len(row[place]) for row in rows) + 2 for place in range(1, len(header)))
    room = max(MIN_NAME, width - others)
    rows = [(_shorten_name(row[0], room), *row[1:]) for row in rows]
    return _align_columns(rows, right=set(range(4, len(header) - 1)))


def _cells(item: InventoryItem, *, values: bool) -> tuple[str, ...]:
    if values:
        numbers = [_number(value) for value in (item.mean, item.std, item.min, item.max)]
    else:
        numbers = [f"{item.num_elements:,}"]
    shape = "x".join(map(str, item.shape)) or "scalar"
    return (item.name, item.kind, item.dtype, shape, *numbers, _note(item))


def _note(item: InventoryItem) -> str:
    if not item.is_finite:
        return _nonfinite(item)
    return "all zero" if item.is_zero and _is_weight(item) else ""


def _is_weight(item: InventoryItem) -> bool:
    """Say whether zeros are worth a word: buffers and an optimizer's state often begin so."""
    return item.kind in ("parameter", "trainable", "frozen")


def _nonfinite(item: InventoryItem) -> str:
    parts = [f"{item.num_nan:,} NaN"] if item.num_nan else []
    return ", ".join([*parts, f"{item.num_inf:,} inf"] if item.num_inf else parts)


def _shorten_name(name: str, room: int) -> str:
    """Cut a name in its middle: both ends tell names apart."""
    return name if len(name) <= room else f"{name[: (room - 1) // 2]}…{name[len(name) - room // 2 :]}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _more(number: int) -> str:
    return f" and {number:,} more" if number > 0 else ""


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _bytes(number: float) -> str:
    """Say an amount of memory in its own unit.

    >>> _bytes(12), _bytes(2048), _bytes(3.5 * 2**30)
    ('12 B', '2.0 KB', '3.5 GB')
    """
    units = ["B", "KB", "MB", "GB", "TB"]
    place = 0
    while number >= 1024 and place < len(units) - 1:
        number, place = number / 1024, place + 1
    return f"{number:.1f} {units[place]}" if place else f"{number:.0f} B"


def _align_columns(rows: Sequence[tuple[str, ...]], *, right: set[int]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
