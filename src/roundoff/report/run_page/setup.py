"""How the run was set up: recipe, its plan, optimizers, environment, and what differs from the reference."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundoff.diagnose.diagnosis import RunView
from roundoff.report.comparisons.compared_runs import settings_table
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.page import facts
from roundoff.report.parts import Cell, TableColumn, TableRow, table, table_html
from roundoff.report.run_page.section import Section
from roundoff.runs import JsonValue, OptimizerFacts, RunInfo, to_json


def settings_section(view: RunView) -> Section:
    """List what the run says about itself, after what differs from the reference."""
    info = view.run.info
    groups = {
        "Packages": info.packages,
        "Hardware": info.hardware,
        "Environment": info.environment,
        "Recording settings": info.settings,
    }
    return Section(
        key="settings",
        title="Environment and configuration",
        short="Environment",
        body=join_html(
            _differences(view),
            facts(_plain(info)),
            *(_group(title, values) for title, values in groups.items() if values),
            *(tag("p", note, class_="faint") for note in info.notes),
        ),
    )


def _differences(view: RunView) -> Html:
    if view.comparison is None:
        return join_html()
    differences = view.comparison.settings
    if not differences:
        return tag("p", "All recorded settings are the same as in the reference.")
    return join_html(tag("h3", "Different from the reference"), table_html(settings_table(differences)))


def _plain(info: RunInfo) -> dict[str, str]:
    facts_by_name = {
        "command": " ".join(info.command),
        "status": info.status,
        "started": info.started,
        "finished": info.finished,
        "seed": info.seed,
        "ranks": info.ranks,
        "launched by": info.launch,
        "commit": info.git_commit,
    }
    return {name: str(value) for name, value in facts_by_name.items() if value not in (None, "")}


def _group(title: str, values: Mapping[str, JsonValue]) -> Html:
    named = {name: value if isinstance(value, str) else to_json(value) for name, value in values.items()}
    return tag("details", tag("summary", f"{title} ({len(values)})"), facts(named), open=len(values) <= 12)


MAX_OVERRIDES = 500
_SETTING_NAMES = {
    "compute": "computation",
    "compute_format": "format",
    "weights": "weights",
    "norms": "norms",
    "inputs": "inputs",
    "outputs": "outputs",
    "master_weights": "master weights",
    "update": "rounding of updates",
    "activation_bits": "bits of saved activations",
    "optimizer_states": "optimizer state",
    "device_profile": "emulated device",
}
"""The settings that say most about a recipe, in words."""


def recipe_section(view: RunView) -> Section:
    """Show the recipe of each optimizer, or say that the model computes as it was written."""
    structures = view.run.structures()
    optimizers = structures[-1].optimizers if structures else ()
    name = view.run.info.recipe
    if name is not None:
        sentence = f"The model trained with the recipe {name}."
    elif any(optimizer.recipe for optimizer in optimizers):
        sentence = "The model trained with a recipe that the script applied."
    else:
        sentence = "No recipe was applied: the model computes in the formats of its parameters."
    return Section(
        key="recipe",
        title="Recipe and optimizers",
        short="Recipe",
        body=join_html(
            tag("p", sentence),
            *(_optimizer(optimizer, view) for optimizer in optimizers),
        ),
    )


def _optimizer(optimizer: OptimizerFacts, view: RunView) -> Html:
    groups = [facts({name: _value(value) for name, value in group.items()}) for group in optimizer.groups[:8] if group]
    recipe = _recipe(optimizer.recipe, view) if optimizer.recipe else Html()
    return join_html(tag("h3", optimizer.name), *groups, recipe)


def _recipe(toml: str, view: RunView) -> Html:
    plan = planned_recipe(view.run.path, toml)
    return join_html(
        facts(_settings(toml)),
        _overrides(toml, plan),
        *([] if plan is None else _evidence(plan)),
        tag("details", tag("summary", "the complete recipe file"), tag("pre", plan.text if plan else toml)),
    )


def _settings(toml: str) -> dict[str, str]:
    """Return the most telling settings; those that say nothing are left out."""
    try:
        known: Mapping[str, Any] = tomllib.loads(toml)
    except tomllib.TOMLDecodeError:
        return {}
    scale = known.get("loss_scale", {})
    kind = scale.get("kind", "") if isinstance(scale, Mapping) else ""
    facts_by_name = {
        words: _value(known[key])
        for key, words in _SETTING_NAMES.items()
        if known.get(key) not in (None, "", 0, False, [])
    }
    return {
        "recipe": str(known.get("name", "")),
        **facts_by_name,
        "loss scale": f"{kind}, from {scale['initial']:g}"
        if kind not in ("", "none") and "initial" in scale
        else "none",
    }


def _overrides(toml: str, plan: PlannedRecipe | None) -> Html:
    found = overrides_of(toml)
    if not found:
        return tag("p", "The recipe has no overrides: all sites use the same formats.")
    reasons = plan.reasons if plan is not None else {}
    columns = [
        TableColumn(name="site or op"),
        TableColumn(name="format"),
        *([TableColumn(name="why")] if reasons else []),
    ]
    rows = [
        TableRow(
            cells=[Cell(shown=text, value=text) for text in (site, fmt, *([reasons.get(site, "")] if reasons else []))]
        )
        for site, fmt in list(found.items())[:MAX_OVERRIDES]
    ]
    return join_html(tag("h3", "Sites with their own format"), table(columns, rows, noun="overrides"))


def _evidence(plan: PlannedRecipe) -> list[Html]:
    return [
        tag("h3", "Evidence of the plan"),
        tag("pre", plan.evidence),
        tag("p", str(plan.path), class_="faint"),
    ]


def _value(value: JsonValue) -> str:
    return value if isinstance(value, str) else to_json(value)


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
    wanted = _recipe_settings(toml)
    if not wanted:
        return None
    for path in _files_around(run_folder):
        text = _text(path)
        if text and _recipe_settings(text) == wanted:
            return PlannedRecipe(path=path, text=text, evidence=_first_comments(text), reasons=_reasons(text))
    return None


def overrides_of(toml: str) -> dict[str, str]:
    """Return the formats of a recipe's overrides, by site or op."""
    overrides = _recipe_settings(toml).get("overrides", {})
    return {str(site): str(fmt) for site, fmt in overrides.items()} if isinstance(overrides, Mapping) else {}


def _recipe_settings(toml: str) -> dict[str, Any]:
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


def _first_comments(text: str) -> str:
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
