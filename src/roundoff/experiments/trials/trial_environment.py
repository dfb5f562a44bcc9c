"""The environment variables that tell a training what a trial changes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from roundoff.experiments.trials.trial import TrialSetting
from roundoff.precision.recipe.recipe_environment import APPLIED_VARIABLE
from roundoff.precision.recipe.site_formats import OVERRIDES_VARIABLE, overrides_in_environment
from roundoff.switches import SWITCHES_VARIABLE, switches_in_environment

_RECIPE, _SITES = "ROUNDOFF_RECIPE", "ROUNDOFF_SITES"
APPLIED_NAME = "applied.jsonl"
"""The file in the folder of a trial in which `apply_recipe` records what it applied."""


def environment_variables(setting: TrialSetting, *, folder: Path) -> dict[str, str]:
    """Return the environment variables that tell a process what a setting changes.

    `ROUNDOFF_SITES` holds the sites of the overrides, separated by commas, for commands that do not read JSON.
    Overrides and switches in the environment of this process belong to the training and are kept.
    """
    variables = {
        APPLIED_VARIABLE: str(folder / APPLIED_NAME),
        OVERRIDES_VARIABLE: json.dumps({**overrides_in_environment(), **setting.overrides}),
        _SITES: ",".join(setting.overrides),
    }
    if setting.recipe is not None:
        variables[_RECIPE] = setting.recipe
    if setting.switches:
        variables[SWITCHES_VARIABLE] = json.dumps({**switches_in_environment(), **setting.switches})
    return variables


@contextlib.contextmanager
def steering_environment(setting: TrialSetting, *, folder: Path) -> Iterator[None]:
    """Set the variables of a setting in this process's environment inside the block, and restore them after it.

    What an earlier attempt recorded in the same folder is removed.
    """
    (folder / APPLIED_NAME).unlink(missing_ok=True)
    with _changing_environment(environment_variables(setting, folder=folder)):
        yield


@contextlib.contextmanager
def _changing_environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
