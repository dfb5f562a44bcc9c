"""Finds a function of the user's by its name, `package.module:function` or `file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from roundoff.errors import SwitchError, first_line


def load_function(name: str) -> Callable[..., Any]:
    """Import a function; modules in the current folder are found, too.

    Raises:
        SwitchError: there is no such module or function, or importing it fails.
    """
    place, _, function_name = name.rpartition(":")
    try:
        function = getattr(_module(place), function_name)
    except Exception as error:
        raise SwitchError.explain(
            f"The function '{name}' cannot be found.",
            why=f"{type(error).__name__}: {first_line(error)}",
            fix="write module:function, or file.py:function.",
        ) from error
    if not callable(function):
        raise SwitchError.explain(f"'{name}' is not a function.", why=f"it is a {type(function).__name__}.")
    found: Callable[..., Any] = function
    return found


def _module(place: str) -> ModuleType:
    folder = str(Path.cwd())
    is_new = folder not in sys.path
    if is_new:
        sys.path.insert(0, folder)
    try:
        return _module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    finally:
        if is_new:
            sys.path.remove(folder)


def _module_of_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
