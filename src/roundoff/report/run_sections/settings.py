"""Environment and configuration, and what the reference was told differently."""

from __future__ import annotations

from collections.abc import Mapping

from roundoff.report.compared_page import settings_table
from roundoff.report.markup import Html, joined, tag
from roundoff.report.page import facts
from roundoff.report.run_view import RunView
from roundoff.report.section import Section
from roundoff.runs import JsonValue, RunInfo, to_json


def settings_section(view: RunView) -> Section:
    """List what the run says about itself, after what differs from the reference."""
    info = view.run.info
    groups = {
        "Packages": info.packages,
        "Hardware": info.hardware,
        "Environment": info.environment,
        "What was recorded": info.settings,
    }
    return Section(
        key="settings",
        title="Environment and configuration",
        short="Environment",
        body=joined(
            _differences(view),
            facts(_plain(info)),
            *(_group(title, values) for title, values in groups.items() if values),
            *(tag("p", note, class_="faint") for note in info.notes),
        ),
    )


def _differences(view: RunView) -> Html:
    if view.comparison is None:
        return joined()
    differences = view.comparison.settings
    if not differences:
        return tag("p", "The reference was told the same, as far as both runs say.")
    return joined(tag("h3", "Different from the reference"), settings_table(differences))


def _plain(info: RunInfo) -> dict[str, str]:
    told = {
        "command": " ".join(info.command),
        "status": info.status,
        "started": info.started,
        "finished": info.finished,
        "seed": info.seed,
        "ranks": info.ranks,
        "launched by": info.launch,
        "commit": info.git_commit,
    }
    return {name: str(value) for name, value in told.items() if value not in (None, "")}


def _group(title: str, values: Mapping[str, JsonValue]) -> Html:
    named = {name: value if isinstance(value, str) else to_json(value) for name, value in values.items()}
    return tag("details", tag("summary", f"{title} ({len(values)})"), facts(named), open=len(values) <= 12)
