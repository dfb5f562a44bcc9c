"""The axes of a sweep: what varies, under which labels, and every combination of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roundoff.errors import SweepError

Settings = Mapping[str, Any]
Axis = Mapping[str, Settings]
"""Settings by label."""


def read_axes(tables: object, *, known: Sequence[str], where: str) -> list[dict[str, Axis]]:
    """Read `[axes]`, or several `[[axes]]` whose combinations are added up.

    An axis is a list of values, if it has the name of a setting, or a table from labels to settings:

    >>> read_axes({"lr": [0.1, 1.0], "clip": {"yes": {"clip": 1.0}, "no": {}}}, known=["lr", "clip"], where="a.toml")
    [{'lr': {'0.1': {'lr': 0.1}, '1.0': {'lr': 1.0}}, 'clip': {'yes': {'clip': 1.0}, 'no': {}}}]
    """
    several: list[Any] = tables if isinstance(tables, list) else [tables]
    if not several or not all(isinstance(table, dict) and table for table in several):
        raise SweepError.explain(
            f"'{where}' has no axes.",
            why="a sweep without anything that varies is one training.",
            fix='add for example:  [axes]  recipe = ["fp32", "O2"]',
        )
    return [{name: _axis(name, axis, known=known, where=where) for name, axis in table.items()} for table in several]


def combinations(axes: Mapping[str, Axis]) -> Iterator[dict[str, str]]:
    """Yield one label for every axis, in all combinations; the last axis varies fastest."""
    for labels in itertools.product(*axes.values()):
        yield dict(zip(axes, labels, strict=True))


def merged(*settings: Settings) -> dict[str, Any]:
    """Return all settings together; of two values the later one counts, tables are merged.

    The name of a recipe is short for a table that begins with it, so that axes can add to it.

    >>> merged({"recipe": "fixed"}, {"recipe": {"fixed": {"weight": {"bits": 4}}}})
    {'recipe': {'base': 'fixed', 'fixed': {'weight': {'bits': 4}}}}
    """
    result: dict[str, Any] = {}
    for table in settings:
        for name, value in table.items():
            before = result.get(name)
            if name == "recipe" and isinstance(value, dict) and isinstance(before, str):
                before = {"base": before}
            both = isinstance(value, dict) and isinstance(before, dict)
            result[name] = merged(before, value) if both else value  # type: ignore[arg-type]
    return result


def _axis(name: str, axis: object, *, known: Sequence[str], where: str) -> Axis:
    if isinstance(axis, list):
        return _axis_of_values(name, axis, known=known, where=where)
    if not isinstance(axis, dict):
        raise SweepError.explain(
            f"Axis '{name}' of '{where}' cannot be {axis!r}.",
            why="an axis is a list of values, or a table from labels to settings.",
            fix=f"write {name} = [{axis!r}], or put it under [settings].",
        )
    if not axis:
        raise _empty(name, where)
    return {label: _settings_of(name, label, value, known=known, where=where) for label, value in axis.items()}


def _axis_of_values(name: str, values: list[Any], *, known: Sequence[str], where: str) -> Axis:
    if not values:
        raise _empty(name, where)
    if name not in known:
        raise SweepError.explain(
            f"Axis '{name}' of '{where}' is not the name of a setting.",
            why=f"a list gives values to one; settings are {', '.join(known)}.",
            fix=f"use the name of a setting, or a table: [axes.{name}]  label = {{ lr = 0.1, clip = 1.0 }}",
        )
    labels = [label_of(value) for value in values]
    for label in labels:
        if labels.count(label) > 1:
            raise SweepError.explain(
                f"Axis '{name}' of '{where}' has the value '{label}' {labels.count(label)} times.",
                why="each would train the same again.",
                fix="leave one; for repetitions add the axis  seed = [0, 1, 2]",
            )
    return {label: {name: value} for label, value in zip(labels, values, strict=True)}


def _settings_of(name: str, label: str, value: object, *, known: Sequence[str], where: str) -> Settings:
    """Return the settings behind a label: a table, or the one value of an axis named like its setting."""
    if isinstance(value, dict):
        return value
    if name in known:
        return {name: value}
    raise SweepError.explain(
        f"Label '{label}' of axis '{name}' in '{where}' cannot be {value!r}.",
        why=f"'{name}' is not the name of a setting, so each label needs a table of settings.",
        fix=f"write {label} = {{ lr = 0.1 }}",
    )


def label_of(value: object) -> str:
    """Return what a table calls a value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "+".join(label_of(item) for item in value)
    return str(value)


def _empty(name: str, where: str) -> SweepError:
    return SweepError.explain(
        f"Axis '{name}' of '{where}' is empty.", why="there is no value to train with.", fix="add one, or remove it."
    )
