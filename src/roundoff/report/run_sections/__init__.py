"""The page of a run from top to bottom: one file for each section."""

from __future__ import annotations

from collections.abc import Callable

from roundoff.report.run_sections.compared import compared
from roundoff.report.run_sections.loss import loss
from roundoff.report.run_sections.norms import norms
from roundoff.report.run_sections.recipe import recipe
from roundoff.report.run_sections.settings import settings
from roundoff.report.run_sections.sites import sites
from roundoff.report.run_sections.steps import steps
from roundoff.report.run_sections.verdict import verdict
from roundoff.report.run_view import RunView
from roundoff.report.section import Section

SectionMaker = Callable[[RunView], Section | None]

SECTIONS: tuple[SectionMaker, ...] = (
    verdict,
    compared,
    loss,
    norms,
    steps,
    sites,
    recipe,
    settings,
)
"""Each returns its part of the page, or None where the run holds nothing of the kind; a new one gets a line here."""
