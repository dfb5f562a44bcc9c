"""The sections of the report about a run, from top to bottom."""

from __future__ import annotations

from collections.abc import Callable

from roundoff.diagnose.run_view import RunView
from roundoff.report.run_page.against_reference import compared_section, side_by_side_section
from roundoff.report.run_page.exponents import exponents_section
from roundoff.report.run_page.findings import verdict_section
from roundoff.report.run_page.rank_matrix import ranks_section
from roundoff.report.run_page.recorded_ops import steps_section
from roundoff.report.run_page.section import Section
from roundoff.report.run_page.setup import recipe_section, settings_section
from roundoff.report.run_page.site_tree import sites_section
from roundoff.report.run_page.training_curves import loss_section, norms_section
from roundoff.report.run_page.training_data import data_section

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
