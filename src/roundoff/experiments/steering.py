"""Steers a training that is started here: what a setting changes, as variables of its environment."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from roundoff.experiments.trial import Setting

_RECIPE, _OVERRIDES, _SITES = "ROUNDOFF_RECIPE", "ROUNDOFF_OVERRIDES", "ROUNDOFF_SITES"
_SWITCHES, _APPLIED_TO = "ROUNDOFF_SWITCHES", "ROUNDOFF_APPLIED_TO"
APPLIED_NAME = "applied.jsonl"
"""In the folder of a trial: what `apply_recipe` left word of there."""


def variables_of(setting: Setting, *, folder: Path) -> dict[str, str]:
    """Return the variables by which a process learns what a setting changes.

    `ROUNDOFF_SITES` holds the sites of the overrides, separated by commas, for commands that read no JSON. Overrides
    that this process was given itself belong to the training and stay.
    """
    before = json.loads(os.environ.get(_OVERRIDES) or "{}")
    variables = {
        _APPLIED_TO: str(folder / APPLIED_NAME),
        _OVERRIDES: json.dumps({**before, **setting.overrides}),
        _SITES: ",".join(setting.overrides),
    }
    if setting.recipe is not None:
        variables[_RECIPE] = setting.recipe
    if setting.switches:
        variables[_SWITCHES] = json.dumps(dict(setting.switches))
    return variables


@contextlib.contextmanager
def steered(setting: Setting, *, folder: Path) -> Iterator[None]:
    """Have the variables of a setting in this process's environment inside the block, and its old ones after it.

    What an earlier try in the same folder left word of goes.
    """
    (folder / APPLIED_NAME).unlink(missing_ok=True)
    with _environment(variables_of(setting, folder=folder)):
        yield


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
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
