"""The plan that a run's recipe came from, if its folder is around or next to the run."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MAX_FOLDERS = 500
_MAX_BYTES = 2**20
_NAMES_ONLY = ("name", "description")
"""Settings that do not make a recipe different."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRecipe:
    """The recipe file of a plan, with its evidence."""

    path: Path
    text: str
    evidence: str
    """What was measured, expected and tried."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why each override is there, by site or op."""


def planned_recipe(run_folder: Path, toml: str) -> PlannedRecipe | None:
    """Return the plan whose recipe has the settings of `toml`; None without one, or if `toml` is invalid."""
    wanted = _settings(toml)
    if not wanted:
        return None
    for path in _files_around(run_folder):
        text = _text(path)
        if text and _settings(text) == wanted:
            return PlannedRecipe(path=path, text=text, evidence=_evidence(text), reasons=_reasons(text))
    return None


def overrides_of(toml: str) -> dict[str, str]:
    """Return the formats of a recipe's overrides, by site or op."""
    overrides = _settings(toml).get("overrides", {})
    return {str(site): str(fmt) for site, fmt in overrides.items()} if isinstance(overrides, Mapping) else {}


def _settings(toml: str) -> dict[str, Any]:
    try:
        return {key: value for key, value in tomllib.loads(toml).items() if key not in _NAMES_ONLY}
    except tomllib.TOMLDecodeError:
        return {}


def _files_around(run_folder: Path) -> Iterator[Path]:
    """Yield the recipes of plan folders: those that contain the run as a trial, and those next to it."""
    folder = run_folder.resolve()
    siblings = sorted(itertools.islice(folder.parent.glob("*/plan.json"), _MAX_FOLDERS))
    for plan in (*(parent / "plan.json" for parent in folder.parents[:4]), *siblings):
        recipe = plan.with_name("recipe.toml")
        if plan.is_file() and recipe.is_file():
            yield recipe


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= _MAX_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _evidence(text: str) -> str:
    """Return the comments at the start of the file."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)


def _reasons(text: str) -> dict[str, str]:
    """Return the comments above each override."""
    found: dict[str, str] = {}
    comments: list[str] = []
    for line in text.partition("[overrides]\n")[2].splitlines():
        named = re.match(r'("?)(.+?)\1 = ', line)
        if line.startswith("#"):
            comments.append(line.removeprefix("# "))
        elif named is None:
            break  # what follows the overrides is about all sites
        else:
            found[named[2]] = "; ".join(comments)
            comments = []
    return found
