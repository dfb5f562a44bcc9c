"""The plan that a run's recipe came from, where its folder lies around the run or beside it."""

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
"""A recipe is the same under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRecipe:
    """The file of a plan's recipe, with its evidence."""

    path: Path
    text: str
    evidence: str
    """What is known about the whole: what was measured, expected, tried."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """By site or op of an override, why it is there."""


def planned_recipe(run_folder: Path, toml: str) -> PlannedRecipe | None:
    """Return the plan whose recipe says what `toml` says; None if none does, or `toml` cannot be read."""
    wanted = _settings(toml)
    if not wanted:
        return None
    for path in _files_around(run_folder):
        text = _text(path)
        if text and _settings(text) == wanted:
            return PlannedRecipe(path=path, text=text, evidence=_evidence(text), reasons=_reasons(text))
    return None


def overrides_of(toml: str) -> dict[str, str]:
    """Return the formats that a recipe gives to single sites and ops."""
    overrides = _settings(toml).get("overrides", {})
    return {str(site): str(fmt) for site, fmt in overrides.items()} if isinstance(overrides, Mapping) else {}


def _settings(toml: str) -> dict[str, Any]:
    try:
        return {key: value for key, value in tomllib.loads(toml).items() if key not in _NAMES_ONLY}
    except tomllib.TOMLDecodeError:
        return {}


def _files_around(run_folder: Path) -> Iterator[Path]:
    """Yield the recipes of plan folders: those that hold the run as a trial, and those beside it."""
    folder = run_folder.resolve()
    beside = sorted(itertools.islice(folder.parent.glob("*/plan.json"), _MAX_FOLDERS))
    for plan in (*(parent / "plan.json" for parent in folder.parents[:4]), *beside):
        recipe = plan.with_name("recipe.toml")
        if plan.is_file() and recipe.is_file():
            yield recipe


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= _MAX_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _evidence(text: str) -> str:
    """Return the comments that the file begins with."""
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
            break  # what comes behind the overrides is about all sites
        else:
            found[named[2]] = "; ".join(comments)
            comments = []
    return found
