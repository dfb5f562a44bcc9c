"""The report about a run: all sections that have content, and notes on what was left out, in one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from roundoff.diagnose.diagnosis import RunView
from roundoff.errors import RunFolderError
from roundoff.progress import counting
from roundoff.report.markup import Html, tag
from roundoff.report.page import asset, facts, page
from roundoff.report.run_page.against_reference import compared_section, side_by_side_section
from roundoff.report.run_page.exponents import exponents_section
from roundoff.report.run_page.findings import verdict_section
from roundoff.report.run_page.rank_matrix import ranks_section
from roundoff.report.run_page.recorded_ops import steps_section
from roundoff.report.run_page.section import Section, section_html
from roundoff.report.run_page.setup import recipe_section, settings_section
from roundoff.report.run_page.site_tree import sites_section
from roundoff.report.run_page.training_curves import loss_section, norms_section
from roundoff.report.run_page.training_data import data_section

SectionMaker = Callable[[RunView], Section | None]

SECTIONS: tuple[SectionMaker, ...] = (
    verdict_section,
    loss_section,
    compared_section,
    side_by_side_section,
    norms_section,
    steps_section,
    sites_section,
    exponents_section,
    data_section,
    ranks_section,
    recipe_section,
    settings_section,
)
"""Each returns its part of the page, or None where the run holds nothing of the kind; a new one gets a line here."""


SCRIPTS = ("charts.js", "steps.js", "sites.js", "exponents.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """A page, and what it is made of."""

    html: str
    sections: Sequence[str]
    """The keys of its sections, in order."""
    thinned: Sequence[str]
    """What it leaves out, a sentence each."""


def run_page(view: RunView, *, makers: Sequence[SectionMaker] = SECTIONS) -> RunPage:
    """Return the page of a run; it needs no other file and no network."""
    made = [
        section
        for section in (_make_section(maker, view) for maker in counting(makers, "section"))
        if section is not None
    ]
    title = view.name if view.reference is None else f"{view.name} against {_name(view)}"
    text = page(
        title,
        facts(_summary(view)),
        _contents(made),
        *map(section_html, made),
        styles=[asset("run_page.css")],
        scripts=[*map(asset, SCRIPTS)],
        drawing=plotly_script(),
    )
    return RunPage(
        html=text,
        sections=[section.key for section in made],
        thinned=[note for section in made for note in section.thinned],
    )


@cache
def plotly_script() -> Html:
    """Return plotly itself, as it goes into a page."""
    found = find_spec("plotly")  # not imported: that takes longer than reading its script
    assert found is not None, "plotly is installed with roundoff"
    assert found.submodule_search_locations is not None
    path = Path(found.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return Html(path.read_text(encoding="utf-8"))


def _name(view: RunView) -> str:
    assert view.reference is not None
    return view.reference.info.name or view.reference.path.resolve().name


def _make_section(maker: SectionMaker, view: RunView) -> Section | None:
    """Make a section; of one whose files are damaged the page says so, and has the others."""
    try:
        return maker(view)
    except RunFolderError as error:
        key = maker.__name__.removesuffix("_section")
        return Section(key=key, title=key.capitalize(), body=tag("pre", str(error)))


def _summary(view: RunView) -> dict[str, str]:
    """Return what the run was, in a few words."""
    info = view.run.info
    summary = {
        "run": str(view.run.path),
        "reference": str(view.reference.path) if view.reference is not None else None,
        "status": info.status,
        "ranks": str(info.ranks) if info.ranks > 1 else None,
        "recipe": info.recipe,
        "started": info.started[:19].replace("T", " "),
    }
    with suppress(RunFolderError):  # the sections report it
        metrics, recorded = view.run.metrics(), {*view.run.steps, *view.run.replayed_steps}
        summary |= {"steps": str(metrics[-1].step + 1 if metrics else 0), "recorded steps": str(len(recorded))}
    return {name: value for name, value in summary.items() if value}


def _contents(sections: Sequence[Section]) -> Html:
    links = [tag("a", section.short or section.title, href=f"#{section.key}") for section in sections]
    return tag("nav", *links, aria_label="sections", class_="contents")
