"""How the run was set up: recipe, optimizers, environment, and what differs from the reference."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from roundoff.diagnose.planned_recipe import PlannedRecipe, overrides_of, planned_recipe
from roundoff.diagnose.run_view import RunView
from roundoff.report.comparisons.compared_runs import settings_table
from roundoff.report.html_table import Cell, Column, TableRow, table
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.page import facts
from roundoff.report.parts import table_html
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
        words: _value(known[key]) for key, words in _SETTING_NAMES.items() if known.get(key) not in (None, "", 0, False)
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
    columns = [Column(name="site or op"), Column(name="format"), *([Column(name="why")] if reasons else [])]
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
