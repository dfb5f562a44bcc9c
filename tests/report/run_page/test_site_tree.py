import re
from pathlib import Path

import pytest

from roundoff.diagnose.diagnosis import RunView, view_run
from roundoff.report.page import asset
from roundoff.report.run_page import site_tree as room
from roundoff.report.run_page.site_tree import NUM_LEVELS, sites_section
from tests.report.sample_runs import diagnosed, record_run, write_metrics_run


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return view_run(diagnosed(record_run(tmp_path_factory.mktemp("sites") / "run")))


def body_of(view: RunView) -> str:
    section = sites_section(view)
    assert section is not None
    return section.body


def row_of(body: str, site: str) -> str:
    """Return the cells of a site as HTML."""
    (row,) = re.findall(rf'data-site="{site}"[^>]*>(?:<summary>)?(<span class="site-row">.*?</span></span>)', body)
    return row


def test_the_tree_follows_the_model(view: RunView):
    body = body_of(view)
    stem = body[body.index('data-site="stem"') :]
    assert stem.index('data-site="stem.0"') < stem.index("</details>")
    assert 'data-site="head"' in body


def test_a_site_that_overflowed_is_the_darkest(view: RunView):
    row = row_of(body_of(view), "body")
    assert f'class="level{NUM_LEVELS}"' in row


def test_a_site_within_its_range_is_not_coloured(tmp_path: Path):
    healthy = view_run(record_run(tmp_path / "run", is_broken=False))
    row = row_of(body_of(healthy), "head")
    assert "level" not in row
    assert "<span>-</span>" in row  # introduced errors are measured on request only


def test_every_level_has_a_colour():
    css = asset("run_page.css")
    assert all(f".level{level} " in css for level in range(1, NUM_LEVELS + 1))


def test_sites_beyond_the_room_are_counted(view: RunView, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "MAX_SITES", 2)
    section = sites_section(view)
    assert section is not None
    assert re.match(r"\d more sites are left out", section.thinned[0])


def test_without_recorded_steps_there_is_no_section(tmp_path: Path):
    assert sites_section(view_run(write_metrics_run(tmp_path / "run", [1.0]))) is None


def test_what_a_format_would_lose_is_reported_where_histograms_were_recorded(tmp_path: Path):
    assert row_of(body_of(view_run(record_run(tmp_path / "a", is_broken=False))), "head").count("<span>-</span>") == 2
    counted = view_run(record_run(tmp_path / "b", is_broken=False, histograms=True))
    row = row_of(body_of(counted), "head")
    assert row.count("<span>-</span>") == 1  # introduced errors alone were not measured
    assert "lost in fp16" in body_of(counted)


def test_against_a_reference_a_site_says_how_far_it_is_off(tmp_path: Path):
    reference = record_run(tmp_path / "a", is_broken=False)
    view = view_run(record_run(tmp_path / "b", is_broken=False, eps=0.1), against=reference)
    body = body_of(view)
    assert '<span class="level5">1.7e+05</span>' in row_of(body, "stem.0")
    assert '<span class="level5">1.7e+05</span>' in row_of(body, "stem")
    assert "level" not in row_of(body, "head").partition("</span>")[2].partition("</span>")[0]
    excess = room.site_excess(view)
    assert excess is not None
    assert excess["stem"] == excess["stem.0"] > 1 > excess["head"]


def test_a_site_that_a_finding_names_is_marked_with_it(view: RunView):
    body = body_of(view)
    assert '<em class="severity error">overflow</em>' in row_of(body, "body")
    assert "<em" not in row_of(body, "head")
