"""Names and methods that are imported on first use, since torch alone takes seconds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names are defined in these modules."""

    def get_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get_name


def lazy_method(module: str, name: str) -> Callable[[Any], Any]:
    """Return a method that calls a function of another module, imported when it is used.

    How data looks is a matter of the room `report`, which is above the rooms that own the data.
    """

    def method(self: Any) -> Any:
        return getattr(importlib.import_module(module), name)(self)

    return method
