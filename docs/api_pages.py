"""Writes the page of a public module: its docstring, then each of its public names by theirs."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

_DECLARED = re.compile(r"^\| `(roundoff[a-z_.]*)` \|", re.M)


def public_modules() -> list[str]:
    """Return the modules that docs/api.md declares public."""
    return _DECLARED.findall((Path(__file__).parent / "api.md").read_text())


def public_names(module: ModuleType) -> list[str]:
    """Return what a public module promises: its `__all__`, or else the names it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    defined = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    return sorted(name for name in defined if not name.startswith("_"))


def page_of_module(name: str) -> str:
    """Return the page as Markdown for mkdocstrings."""
    module = importlib.import_module(name)
    parts = [f"# {name}", f"::: {name}\n    options:\n      members: false\n      show_root_heading: false"]
    parts += [f"::: {_home(module, each)}.{each}" for each in public_names(module) if each != "__version__"]
    return "\n\n".join(parts) + "\n"


def link_modules(page: str) -> str:
    """Turn the names of public modules in docs/api.md into links to their pages."""
    return _DECLARED.sub(r"| [`\1`](api/\1.md) |", page)


def _home(module: ModuleType, name: str) -> str:
    """Return the module that defines a name: `roundoff.formats.round_to` alone is a function and a file."""
    home = str(getattr(getattr(module, name), "__module__", ""))
    is_definition = inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name))
    return home if is_definition and home.startswith("roundoff") else module.__name__
