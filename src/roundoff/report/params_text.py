"""The tensors of a checkpoint or a model as text: totals and problems first, then one line per tensor."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.checkpoints.checkpoint import JsonValue
from roundoff.checkpoints.inventory import Inventory, InventoryItem
from roundoff.report.parts import WIDTH, Facts, to_text
from roundoff.words import size_text, text_table

ORDER = ("parameter", "trainable", "frozen", "buffer", "optimizer", "other")
MAX_TROUBLE = 10
MAX_SETTINGS = 6


def params_text(inventory: Inventory, *, values: bool = False, optimizer: bool = False) -> str:
    """Lay out an inventory, with mean, std, min and max of each tensor as `values`; optimizer tensors always count."""
    items = inventory.items
    listed = [item for item in items if optimizer or item.kind != "optimizer"]
    not_finite = [f"{item.name}: {_nonfinite(item)}" for item in items if item.is_broken]
    unread = [] if inventory.has_values else [("values", "not looked at: that needs torch (pip install torch)")]
    facts = [
        *unread,
        *_settings_fact(inventory.settings),
        *_trouble_facts("not finite", not_finite),
        *_trouble_facts("all zero", [item.name for item in items if item.is_zero and _is_weight(item)]),
    ]
    lines = [
        f"{inventory.source}  {inventory.format}, {_format_count(len(items), 'tensor')}",
        *_totals(items),
        *to_text([Facts(facts, label_width=11, overflow="keep")]).splitlines(),
        *(["", *_table(listed, values=values)] if listed else []),
    ]
    if len(listed) < len(items):
        lines.append(f"{len(items) - len(listed)} of the optimizer: --optimizer lists them")
    return "\n".join(line[:WIDTH] for line in lines)


def _totals(items: Sequence[InventoryItem]) -> list[str]:
    rows = []
    for kind in ORDER:
        of_kind = [item for item in items if item.kind == kind]
        if of_kind:
            elements = f"{sum(item.num_elements for item in of_kind):,} elements"
            size = size_text(sum(item.num_bytes for item in of_kind))
            rows.append((f"  {kind}", _format_count(len(of_kind), "tensor"), elements, size))
    return text_table(rows, left=rows[0][:1], ruled=False).splitlines() if rows else []


def _settings_fact(settings: dict[str, JsonValue]) -> list[tuple[str, str]]:
    """Show some plain settings in one line, those that are nested least first."""
    names = sorted(settings, key=lambda name: name.count("."))
    plain = [f"{name} {settings[name]}" for name in names if isinstance(settings[name], bool | int | float | str)]
    shown = [text for text in plain if len(text) < WIDTH // 3][:MAX_SETTINGS]
    while shown and len(line := f"{', '.join(shown)}{_more(len(settings) - len(shown))}") > WIDTH - 13:
        shown.pop()
    return [("settings", line)] if shown else []


def _trouble_facts(label: str, names: Sequence[str]) -> list[tuple[str, str]]:
    left_out = len(names) - MAX_TROUBLE
    texts = [*names[:MAX_TROUBLE], *([f"and {left_out:,} more"] if left_out > 0 else [])]
    return [("" if place else label, text) for place, text in enumerate(texts)]


def _table(items: Sequence[InventoryItem], *, values: bool) -> list[str]:
    header = ("name", "kind", "dtype", "shape", *(("mean", "std", "min", "max") if values else ("elements",)), "")
    rows = [header, *(_cells(item, values=values) for item in items)]
    return text_table(rows, left=("name", "kind", "dtype", "shape", ""), ruled=False, width=WIDTH).splitlines()


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


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _more(number: int) -> str:
    return f" and {number:,} more" if number > 0 else ""


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
