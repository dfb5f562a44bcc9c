"""Quantities as people type them: `2%`, `500MB`."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


class Share(click.ParamType[float]):
    """A part of a whole, `2%` or `0.02`."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            self.fail(f"'{value}' is no share; write it as 2% or 0.02.", param, ctx)
        return share


class Bytes(click.ParamType[int]):
    """An amount of memory, `500MB` or `2GB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)", str(value).strip(), re.IGNORECASE)
        unit = match[2].upper().replace("I", "") if match else "?"
        unit = unit if not unit or unit.endswith("B") else f"{unit}B"
        if match is None or unit not in _UNITS:
            self.fail(f"'{value}' is no amount of memory; write it as 500MB or 2GB.", param, ctx)
        return int(float(match[1]) * _UNITS[unit])
