"""What a sweep is: its trainings with their labels, read from a TOML file.

```toml
name = "loss-scaling"            # of its folder; default: the name of the file

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

import difflib
import fnmatch
import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from roundoff.errors import RecipeError, SweepError
from roundoff.experiments.sweep.axes import (
    SWEEP_SETTINGS,
    Axis,
    check_names,
    combinations,
    make_train_config,
    merge_settings,
    read_axes,
)
from roundoff.precision import Recipe, find_recipe, recipe_named, to_toml
from roundoff.precision.recipe.toml import from_toml
from roundoff.runs import to_json
from roundoff.train import TrainConfig

SHIPPED_FOLDER = Path(__file__).parent / "shipped"


def shipped_sweeps() -> tuple[Path, ...]:
    """Return the files of the included sweeps, by name."""
    return tuple(sorted(SHIPPED_FOLDER.glob("*.toml")))


def find_sweep(name: str) -> Path:
    """Return the file of a sweep, given by its path or by the name of an included sweep."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return path
    names = {shipped.stem: shipped for shipped in shipped_sweeps()}
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        raise SweepError.explain(
            f"No sweep '{name}'.",
            why=f"there is no such file, and the included sweeps are {', '.join(names)}.",
            fix=f"did you mean '{close[0]}'?" if close else None,
        )
    return names[name]


_TABLE = "table"


def resolve_recipe_setting(setting: object, *, folder: Path, where: str) -> tuple[str, str | None]:
    """Return the name of a recipe, and its whole TOML if the name alone does not say it.

    `setting` is a name, the path of a TOML file (relative to `folder`, where the sweep is), or a table.

    Raises:
        SweepError: it is none of these, or the recipe is invalid.
    """
    try:
        if isinstance(setting, str) and not setting.endswith(".toml"):
            return recipe_named(setting).name, None
        if isinstance(setting, str):
            recipe = find_recipe(folder / setting)
        elif isinstance(setting, Mapping):
            recipe = _from_table(setting, folder=folder)
        else:
            raise SweepError.explain(
                f"{where} cannot set recipe = {setting!r}.", why="it must be a name, a TOML file, or a table."
            )
    except RecipeError as error:
        raise SweepError(f"{where} has an invalid recipe: {_about_a_table(error)}") from error
    return recipe.name, to_toml(recipe)


def _from_table(table: Mapping[str, Any], *, folder: Path) -> Recipe:
    base = table.get("base", "fp32")
    start = folder / base if isinstance(base, str) and base.endswith(".toml") else base
    name = str(base).removesuffix(".toml")
    text = tomli_w.dumps({**table, "base": name})
    return from_toml(text, where=_TABLE, named=lambda _: find_recipe(start), default_name=name)


def _about_a_table(error: RecipeError) -> str:
    """Return the error without file and line, which a table does not have."""
    text = re.sub(rf"^Recipe file '{_TABLE}'(?: line \d+)?:? ", "", str(error))
    return text.replace("has an unknown", "an unknown", 1) if text.startswith("has ") else text


_DO_NOT_CHANGE_A_ROW = ("name", "runs", "resume", "recipe", "timeout_seconds", "tensorboard")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTraining:
    """One training of a sweep, and so one row of its table."""

    labels: Mapping[str, str]
    """Its label on each axis: {"recipe": "O2", "batch_size": "64"}."""
    config: TrainConfig
    """`recipe` is a name; with `recipe_toml` it is the name of the file to write that to."""
    recipe_toml: str | None = None
    """The whole recipe, if it has no name."""

    @property
    def name(self) -> str:
        """The labels in one line."""
        return ", ".join(self.labels.values())

    @property
    def key(self) -> str:
        """A fingerprint of everything that determines the result."""
        settings = {k: v for k, v in self.config.to_object().items() if k not in _DO_NOT_CHANGE_A_ROW}
        text = to_json([settings, self.recipe_toml or self.config.recipe])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def matches(self, pattern: str) -> bool:
        """Whether a shell pattern matches the name, a label, or `axis=label`."""
        words = (self.name, *self.labels.values(), *(f"{axis}={label}" for axis, label in self.labels.items()))
        return any(fnmatch.fnmatchcase(word, pattern) for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A table of trainings."""

    name: str
    description: str
    axes: tuple[str, ...]
    trainings: tuple[PlannedTraining, ...]

    def only(self, *patterns: str) -> Sweep:
        """Return the sweep with only the trainings that match a pattern; a pattern without any is a `SweepError`."""
        for pattern in patterns:
            if any(training.matches(pattern) for training in self.trainings):
                continue
            names = "; ".join(training.name for training in self.trainings[:6])
            more = len(self.trainings) - 6
            raise SweepError.explain(
                f"No training of the sweep '{self.name}' matches '{pattern}'.",
                why=f"they are: {names}{f'; and {more} more' if more > 0 else ''}.",
                fix="a pattern matches a label (O2), axis=label (recipe=O2) or all labels ('O2, *').",
            )
        kept = (training for training in self.trainings if any(map(training.matches, patterns)))
        return replace(self, trainings=tuple(kept))

    def with_steps(self, steps: int) -> Sweep:
        """Return the sweep with every training stopped after this many steps."""
        short = (replace(each, config=replace(each.config, steps=steps)) for each in self.trainings)
        return replace(self, trainings=tuple(short))


_KEYS = ("name", "description", "settings", "axes")


def read_sweep(path: Path, *, changes: Sequence[str] = ()) -> Sweep:
    """Read a sweep file. `changes` are settings of every training, as `name=value`, that replace those of the file.

    Raises:
        SweepError: the file cannot be read, or something in it is invalid; the message names file and key.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        fix = "roundoff sweep --list prints the included ones."
        if isinstance(error, IsADirectoryError):
            fix = f"to print what was trained there: roundoff sweep --show {path}"
        raise SweepError.explain(f"Sweep file '{path}' cannot be read.", why=f"{why}.", fix=fix) from error
    except tomllib.TOMLDecodeError as error:
        raise SweepError.explain(f"Sweep file '{path}' is not valid TOML.", why=f"{error}.") from error
    return _parse_sweep(table, path=path, changes=dict(map(_parse_change, changes)))


def _parse_change(text: str) -> tuple[str, Any]:
    """Return name and value of a setting written as in a sweep file, in which quotes may be left out.

    >>> _parse_change("limit=6000"), _parse_change("data=fashion-mnist")
    (('limit', 6000), ('data', 'fashion-mnist'))
    """
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise SweepError.explain(f"--set {text} has no value.", fix="for example --set data=fashion-mnist")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()


def _parse_sweep(table: Mapping[str, Any], *, path: Path, changes: Mapping[str, Any]) -> Sweep:
    for key in table:
        if key not in _KEYS:
            raise SweepError.explain(
                f"'{path}' has an unknown key '{key}'.",
                why=f"known keys are {', '.join(_KEYS)}.",
                fix=f"put settings of the training under [settings]: {key} = ..." if key in SWEEP_SETTINGS else None,
            )
    settings = table.get("settings", {})
    if not isinstance(settings, dict):
        raise SweepError.explain(f"'settings' of '{path}' is invalid: {settings!r}.", why="it is a table: [settings]")
    check_names(settings, where=f"[settings] of '{path}'")
    check_names(changes, where="--set")
    settings = merge_settings(settings, changes)
    grids = read_axes(table.get("axes"), known=SWEEP_SETTINGS, where=str(path))
    for name in changes:
        if any(name in group for axes in grids for axis in axes.values() for group in axis.values()):
            raise SweepError.explain(f"--set {name} would change nothing.", why=f"an axis of '{path}' varies it.")
    trainings = [training for axes in grids for training in _expand_axes(axes, settings, path=path)]
    _check_no_duplicates(trainings, path=path)
    return Sweep(
        name=_check_sweep_name(table.get("name", path.stem), path=path),
        description=str(table.get("description", "")).strip(),
        axes=tuple(dict.fromkeys(name for axes in grids for name in axes)),
        trainings=tuple(trainings),
    )


def _expand_axes(axes: Mapping[str, Axis], settings: Mapping[str, Any], *, path: Path) -> Iterator[PlannedTraining]:
    for name, axis in axes.items():
        for label, group in axis.items():
            check_names(group, where=f"Axis {name} = '{label}' of '{path}'")
    for labels in combinations(axes):
        values = merge_settings(settings, *(axes[name][label] for name, label in labels.items()))
        where = f"'{path}' at {', '.join(f'{name} = {label}' for name, label in labels.items())}"
        recipe, recipe_toml = resolve_recipe_setting(values.get("recipe", "fp32"), folder=path.parent, where=where)
        config = make_train_config({**values, "recipe": recipe}, where=where)
        yield PlannedTraining(labels=labels, config=config, recipe_toml=recipe_toml)


def _check_no_duplicates(trainings: list[PlannedTraining], *, path: Path) -> None:
    seen: dict[str, PlannedTraining] = {}
    for training in trainings:
        other = seen.setdefault(training.key, training)
        if other is not training:
            raise SweepError.explain(
                f"'{path}' would train the same thing twice: '{other.name}' and '{training.name}'.",
                why="their settings are equal once all axes are combined.",
                fix="remove one, or make their settings different.",
            )


def _check_sweep_name(name: object, *, path: Path) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or not name.strip("."):
        raise SweepError.explain(
            f"Invalid name {name!r} of the sweep in '{path}'.",
            why="it is the name of a folder: letters, digits, '-', '_' and '.'.",
        )
    return name
