"""The axes of a sweep and the settings they vary, checked before anything is trained."""

from __future__ import annotations

import difflib
import itertools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from roundoff.errors import SweepError, TrainError
from roundoff.precision.recipe.recipe import FLAVOURS
from roundoff.train import TrainConfig

Settings = Mapping[str, Any]
Axis = Mapping[str, Settings]
"""Settings by label."""


def read_axes(tables: object, *, known: Sequence[str], where: str) -> list[dict[str, Axis]]:
    """Read `[axes]`, or several `[[axes]]` whose combinations are concatenated.

    An axis is a list of values, if it has the name of a setting, or a table from labels to settings:

    >>> read_axes({"lr": [0.1, 1.0], "clip": {"yes": {"clip": 1.0}, "no": {}}}, known=["lr", "clip"], where="a.toml")
    [{'lr': {'0.1': {'lr': 0.1}, '1.0': {'lr': 1.0}}, 'clip': {'yes': {'clip': 1.0}, 'no': {}}}]
    """
    several: list[Any] = tables if isinstance(tables, list) else [tables]
    if not several or not all(isinstance(table, dict) and table for table in several):
        raise SweepError.explain(
            f"'{where}' has no axes.",
            why="a sweep in which nothing varies is one training.",
            fix='add for example:  [axes]  recipe = ["fp32", "O2"]',
        )
    return [
        {name: _parse_axis(name, axis, known=known, where=where) for name, axis in table.items()} for table in several
    ]


def combinations(axes: Mapping[str, Axis]) -> Iterator[dict[str, str]]:
    """Yield one label for every axis, in all combinations; the last axis varies fastest."""
    for labels in itertools.product(*axes.values()):
        yield dict(zip(axes, labels, strict=True))


def merge_settings(*settings: Settings) -> dict[str, Any]:
    """Return all settings together; later values win, and tables are merged.

    The name of a recipe means a table based on it, so that axes can add to it.

    >>> merge_settings({"recipe": "fixed"}, {"recipe": {"fixed": {"weight": {"bits": 4}}}})
    {'recipe': {'base': 'fixed', 'fixed': {'weight': {'bits': 4}}}}
    """
    result: dict[str, Any] = {}
    for table in settings:
        for name, value in table.items():
            before = result.get(name)
            if name == "recipe" and isinstance(value, dict) and isinstance(before, str):
                before = {"base": before}
            both = isinstance(value, dict) and isinstance(before, dict)
            result[name] = merge_settings(before, value) if both else value  # type: ignore[arg-type]
    return result


def _parse_axis(name: str, axis: object, *, known: Sequence[str], where: str) -> Axis:
    if isinstance(axis, list):
        return _parse_axis_values(name, axis, known=known, where=where)
    if not isinstance(axis, dict):
        raise SweepError.explain(
            f"Axis '{name}' of '{where}' is invalid: {axis!r}.",
            why="an axis is a list of values, or a table from labels to settings.",
            fix=f"write {name} = [{axis!r}], or put it under [settings].",
        )
    if not axis:
        raise _empty_axis_error(name, where)
    return {label: _parse_label_settings(name, label, value, known=known, where=where) for label, value in axis.items()}


def _parse_axis_values(name: str, values: list[Any], *, known: Sequence[str], where: str) -> Axis:
    if not values:
        raise _empty_axis_error(name, where)
    if name not in known:
        raise SweepError.explain(
            f"Axis '{name}' of '{where}' is not the name of a setting.",
            why=f"a list holds values of one setting; settings are {', '.join(known)}.",
            fix=f"use the name of a setting, or a table: [axes.{name}]  label = {{ lr = 0.1, clip = 1.0 }}",
        )
    labels = [label_of(value) for value in values]
    for label in labels:
        if labels.count(label) > 1:
            raise SweepError.explain(
                f"Axis '{name}' of '{where}' has the value '{label}' {labels.count(label)} times.",
                why="it would train the same thing again.",
                fix="keep one; for repetitions add the axis  seed = [0, 1, 2]",
            )
    return {label: {name: value} for label, value in zip(labels, values, strict=True)}


def _parse_label_settings(name: str, label: str, value: object, *, known: Sequence[str], where: str) -> Settings:
    """Return the settings of a label: a table, or one value if the axis has the name of a setting."""
    if isinstance(value, dict):
        return value
    if name in known:
        return {name: value}
    raise SweepError.explain(
        f"Label '{label}' of axis '{name}' in '{where}' is invalid: {value!r}.",
        why=f"'{name}' is not the name of a setting, so each label needs a table of settings.",
        fix=f"write {label} = {{ lr = 0.1 }}",
    )


def label_of(value: object) -> str:
    """Return the label of a value in tables."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "+".join(label_of(item) for item in value)
    return str(value)


def _empty_axis_error(name: str, where: str) -> SweepError:
    return SweepError.explain(
        f"Axis '{name}' of '{where}' is empty.",
        why="there is no value to train with.",
        fix="add one, or remove the axis.",
    )


_DECIDED_BY_THE_SWEEP = {"name", "runs", "resume", "eval_only", "save_every", "tensorboard", "rank", "world_size"}
_LOSS_SCALE_WORDS = {"none": None, "dynamic": 0.0, "recipe": "recipe"}

SWEEP_SETTINGS = tuple(field.name for field in fields(TrainConfig) if field.name not in _DECIDED_BY_THE_SWEEP)
"""The names a sweep may use, in the order of TrainConfig."""


def make_train_config(settings: Mapping[str, Any], *, where: str) -> TrainConfig:
    """Make a config of settings from a TOML file; `where` names them in errors.

    The default is one thread per training, so that results do not depend on the number of jobs.

    Raises:
        SweepError: an unknown name, a value of the wrong type, or an invalid training.
    """
    check_names(settings, where=where)
    values = {name: _check_value(name, value, where=where) for name, value in settings.items()}
    try:
        return TrainConfig(**{"threads": 1, **values, "runs": None})
    except TrainError as error:
        raise SweepError(f"{where} is not a valid training: {error}") from error


def setting_text(name: str, value: object) -> str:
    """Return a setting as it is written in a sweep file, without quotes.

    >>> setting_text("loss_scale", 0.0), setting_text("lr", None), setting_text("lr_scaling", True)
    ('dynamic', 'not set', 'yes')
    """
    if name == "loss_scale":
        words: dict[object, str] = {number: word for word, number in _LOSS_SCALE_WORDS.items()}
        return words.get(value, label_of(value))
    return "not set" if value is None else label_of(value)


def check_names(settings: Mapping[str, Any], *, where: str) -> None:
    """Raise a `SweepError` for the first name that is not a setting."""
    for name in settings:
        if name in SWEEP_SETTINGS:
            continue
        if name in _DECIDED_BY_THE_SWEEP:
            raise SweepError.explain(f"{where} cannot set '{name}'.", why="the sweep decides it for every training.")
        close = difflib.get_close_matches(name, SWEEP_SETTINGS, n=1)
        raise SweepError.explain(
            f"{where} has an unknown setting '{name}'.",
            why=f"settings are {', '.join(SWEEP_SETTINGS)}.",
            fix=f"did you mean '{close[0]}'?" if close else "`roundoff docs sweeps` explains them.",
        )


def _check_value(name: str, value: Any, *, where: str) -> Any:
    if name == "loss_scale" and isinstance(value, str):
        flavours = [f"dynamic:{flavour}" for flavour in FLAVOURS]
        if value in flavours:
            return value
        if value not in _LOSS_SCALE_WORDS:
            raise _value_error(
                name, value, f"dynamic, none, recipe, a number, or one of {', '.join(flavours)}", where=where
            )
        return _LOSS_SCALE_WORDS[value]
    if name in ("augment", "wide") and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    allowed = _TYPES[name]
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        words = " or ".join(_WORDS[each] for each in allowed if each in _WORDS)
        raise _value_error(name, value, words, where=where)
    return value


def _value_error(name: str, value: object, allowed: str, *, where: str) -> SweepError:
    return SweepError.explain(f"{where} cannot set {name} = {value!r}.", why=f"it must be {allowed}.")


def _setting_types() -> dict[str, tuple[type, ...]]:
    """Return the types that a TOML value may have for each setting; where a float is allowed, so is an int."""
    found = {}
    for name, hint in typing.get_type_hints(TrainConfig).items():
        plain = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds = tuple(typing.get_origin(each) or each for each in plain)
        found[name] = (*kinds, int) if float in kinds and int not in kinds else kinds
    return found


_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", tuple: "a list of texts"}
_TYPES = _setting_types()
