"""Reads a sweep from its TOML file, and refuses what it would not train as its author believes.

```toml
name = "loss-scaling"            # of its folder; left out: that of the file

[settings]                       # of every training, named as in TrainConfig
data = "digits"
epochs = 3

[axes]                           # every combination is trained
recipe = ["fp32", "O2"]          # values of one setting
[axes.batch]                     # or groups of settings under labels
small = { batch_size = 64, lr = 0.1 }
large = { batch_size = 512, lr = 0.05 }
```
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from roundoff.errors import SweepError
from roundoff.experiments.axes import Axis, combinations, merged, read_axes
from roundoff.experiments.settings import SETTINGS, check_names, config_of
from roundoff.experiments.sweep import PlannedTraining, Sweep
from roundoff.experiments.sweep_recipes import recipe_of

_KEYS = ("name", "description", "settings", "axes")


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file.

    Raises:
        SweepError: the file cannot be read, or something in it cannot be; the text names file, key and what is allowed.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        fix = "roundoff sweep --list names those that come along."
        if isinstance(error, IsADirectoryError):
            fix = f"to see what was trained there: roundoff sweep --show {path}"
        raise SweepError.explain(f"Sweep file '{path}' cannot be read.", why=f"{why}.", fix=fix) from error
    except tomllib.TOMLDecodeError as error:
        raise SweepError.explain(f"Sweep file '{path}' is not TOML.", why=f"{error}.") from error
    return _sweep(table, path=path)


def _sweep(table: Mapping[str, Any], *, path: Path) -> Sweep:
    for key in table:
        if key not in _KEYS:
            raise SweepError.explain(
                f"'{path}' has an unknown key '{key}'.",
                why=f"known are {', '.join(_KEYS)}.",
                fix=f"put settings of the training under [settings]: {key} = ..." if key in SETTINGS else None,
            )
    settings = table.get("settings", {})
    if not isinstance(settings, dict):
        raise SweepError.explain(f"'settings' of '{path}' cannot be {settings!r}.", why="it is a table: [settings]")
    check_names(settings, where=f"[settings] of '{path}'")
    grids = read_axes(table.get("axes"), known=SETTINGS, where=str(path))
    trainings = [training for axes in grids for training in _trainings(axes, settings, path=path)]
    _check_no_duplicates(trainings, path=path)
    return Sweep(
        name=_name(table.get("name", path.stem), path=path),
        description=str(table.get("description", "")).strip(),
        axes=tuple(dict.fromkeys(name for axes in grids for name in axes)),
        trainings=tuple(trainings),
    )


def _trainings(axes: Mapping[str, Axis], settings: Mapping[str, Any], *, path: Path) -> Iterator[PlannedTraining]:
    for name, axis in axes.items():
        for label, group in axis.items():
            check_names(group, where=f"Axis {name} = '{label}' of '{path}'")
    for labels in combinations(axes):
        values = merged(settings, *(axes[name][label] for name, label in labels.items()))
        where = f"'{path}' at {', '.join(f'{name} = {label}' for name, label in labels.items())}"
        recipe, recipe_toml = recipe_of(values.get("recipe", "fp32"), folder=path.parent, where=where)
        config = config_of({**values, "recipe": recipe}, where=where)
        yield PlannedTraining(labels=labels, config=config, recipe_toml=recipe_toml)


def _check_no_duplicates(trainings: list[PlannedTraining], *, path: Path) -> None:
    seen: dict[str, PlannedTraining] = {}
    for training in trainings:
        other = seen.setdefault(training.key, training)
        if other is not training:
            raise SweepError.explain(
                f"'{path}' would train the same twice: '{other.name}' and '{training.name}'.",
                why="their settings are equal once all axes are put together.",
                fix="remove one, or let a label set something the other does not.",
            )


def _name(name: object, *, path: Path) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or not name.strip("."):
        raise SweepError.explain(
            f"'{path}' cannot be named {name!r}.",
            why="the name is that of a folder: letters, digits, '-', '_' and '.'.",
        )
    return name
