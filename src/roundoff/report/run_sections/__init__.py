"""The page of a run from top to bottom: one file for each section."""

from __future__ import annotations

from collections.abc import Callable

from roundoff.report.run_sections.compared import compared_section
from roundoff.report.run_sections.data import data_section
from roundoff.report.run_sections.exponents import exponents_section
from roundoff.report.run_sections.loss import loss_section
from roundoff.report.run_sections.norms import norms_section
from roundoff.report.run_sections.ranks import ranks_section
from roundoff.report.run_sections.recipe import recipe_section
from roundoff.report.run_sections.settings import settings_section
from roundoff.report.run_sections.side_by_side import side_by_side_section
from roundoff.report.run_sections.sites import sites_section
from roundoff.report.run_sections.steps import steps_section
from roundoff.report.run_sections.verdict import verdict_section
from roundoff.report.run_view import RunView
from roundoff.report.section import Section

SectionMaker = Callable[[RunView], Section | None]

SECTIONS: tuple[SectionMaker, ...] = (
    verdict_section,
    compared_section,
    side_by_side_section,
    loss_section,
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
