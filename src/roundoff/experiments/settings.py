"""The settings a sweep may set: those of a training, checked before anything is trained."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from roundoff.errors import SweepError, TrainError
from roundoff.experiments.axes import label_of
from roundoff.precision.scale_settings import FLAVOURS
from roundoff.train import TrainConfig

_DECIDED_BY_THE_SWEEP = {"name", "runs", "resume", "eval_only", "save_every", "tensorboard", "rank", "world_size"}
_LOSS_SCALE_WORDS = {"none": None, "dynamic": 0.0, "recipe": "recipe"}

SETTINGS = tuple(field.name for field in fields(TrainConfig) if field.name not in _DECIDED_BY_THE_SWEEP)
"""The names a sweep may use, in the order of TrainConfig."""


def config_of(settings: Mapping[str, Any], *, where: str) -> TrainConfig:
    """Make a config of settings as a TOML file has them; `where` is what errors call them.

    Trainings of a sweep use one thread each unless told otherwise: results then do not depend on the number of jobs.

    Raises:
        SweepError: an unknown name, a value of the wrong type, or a training that cannot be.
    """
    check_names(settings, where=where)
    values = {name: _value(name, value, where=where) for name, value in settings.items()}
    try:
        return TrainConfig(**{"threads": 1, **values, "runs": None})
    except TrainError as error:
        raise SweepError(f"{where} cannot be trained: {error}") from error


def setting_text(name: str, value: object) -> str:
    """Return a setting as a sweep file has it, without quotes.

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
        if name in SETTINGS:
            continue
        if name in _DECIDED_BY_THE_SWEEP:
            raise SweepError.explain(f"{where} cannot set '{name}'.", why="the sweep decides it for every training.")
        close = difflib.get_close_matches(name, SETTINGS, n=1)
        raise SweepError.explain(
            f"{where} has an unknown setting '{name}'.",
            why=f"settings are {', '.join(SETTINGS)}.",
            fix=f"did you mean '{close[0]}'?" if close else "docs/sweeps.md tells what each means.",
        )


def _value(name: str, value: Any, *, where: str) -> Any:
    if name == "loss_scale" and isinstance(value, str):
        flavours = [f"dynamic:{flavour}" for flavour in FLAVOURS]
        if value in flavours:
            return value
        if value not in _LOSS_SCALE_WORDS:
            raise _wrong(name, value, f"dynamic, none, recipe, a number, or one of {', '.join(flavours)}", where=where)
        return _LOSS_SCALE_WORDS[value]
    if name == "augment" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    allowed = _TYPES[name]
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        words = " or ".join(_WORDS[each] for each in allowed if each in _WORDS)
        raise _wrong(name, value, words, where=where)
    return value


def _wrong(name: str, value: object, allowed: str, *, where: str) -> SweepError:
    return SweepError.explain(f"{where} cannot set {name} = {value!r}.", why=f"it must be {allowed}.")


def _types() -> dict[str, tuple[type, ...]]:
    """Return the types that a TOML value may have for each setting: a whole number is a number, too."""
    found = {}
    for name, hint in typing.get_type_hints(TrainConfig).items():
        plain = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds = tuple(typing.get_origin(each) or each for each in plain)
        found[name] = (*kinds, int) if float in kinds and int not in kinds else kinds
    return found


_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", tuple: "a list of texts"}
_TYPES = _types()
