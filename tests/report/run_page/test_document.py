"""The page as a file: what is on it for which run, and that nothing on it runs or is fetched that is not ours."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from roundoff.diagnose.diagnosis import view_run
from roundoff.report.run_page.document import SCRIPTS, SECTIONS, plotly_script, run_page
from tests.report.sample_runs import HOSTILE, diagnosed, record_run, write_metrics_run


class Elements(HTMLParser):
    """Notes elements and attributes of a page, and what does not fit together."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.misfits: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.misfits.append(tag)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Elements:
    run = diagnosed(record_run(tmp_path_factory.mktemp("hostile") / "run", name=HOSTILE.replace("/", "")))
    elements = Elements()
    elements.feed(run_page(view_run(run)).html)
    return elements


def test_every_element_ends_where_it_should(hostile: Elements):
    assert (hostile.open, hostile.misfits) == ([], [])


def test_there_are_no_scripts_but_ours(hostile: Elements):
    scripts = [attributes for tag, attributes in hostile.found if tag == "script"]
    assert len([attributes for attributes in scripts if "type" not in attributes]) == 1 + len(SCRIPTS)
    assert {attributes["type"] for attributes in scripts if "type" in attributes} == {"application/json", "text/plain"}
    assert [attributes["id"] for attributes in scripts if attributes.get("type") == "text/plain"] == ["drawing"]
    assert not any(tag == "img" for tag, _ in hostile.found)


def test_nothing_is_fetched(hostile: Elements):
    names = {name for _, attributes in hostile.found for name in attributes}
    assert not names & {"src", "srcset", "action", "data", "onclick", "onload", "onerror"}
    links = {attributes["href"] for _, attributes in hostile.found if "href" in attributes}
    assert all(link is not None and link.startswith("#") for link in links)


def test_links_lead_to_places_on_the_page(hostile: Elements):
    places = {attributes["id"] for _, attributes in hostile.found if "id" in attributes}
    assert {str(attributes["href"])[1:] for tag, attributes in hostile.found if tag == "a"} <= places


def test_names_are_given_once(hostile: Elements):
    places = [attributes["id"] for _, attributes in hostile.found if "id" in attributes]
    assert len(places) == len(set(places))


def test_the_browser_may_run_our_scripts_only(hostile: Elements):
    (policy,) = [a["content"] for tag, a in hostile.found if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert parts["default-src"] == "'none'"
    assert re.fullmatch(r"('sha256-[\w+/=]+' ?){6}", parts["script-src"])
    assert parts["style-src"] == "'unsafe-inline'"
    assert parts["img-src"] == "data: blob:"


def test_plotly_can_stand_inside_a_page():
    assert "</script" not in plotly_script()
    assert "<!--" not in plotly_script()
    assert "\r" not in plotly_script()  # a browser would read another text than the one with the fingerprint


def test_the_page_of_a_broken_run_has_every_section(tmp_path: Path):
    page = run_page(view_run(record_run(tmp_path / "run")))
    assert page.sections == ["verdict", "loss", "norms", "steps", "sites", "exponents", "recipe", "settings"]
    assert page.thinned == []


def test_a_reference_adds_the_comparison(tmp_path: Path):
    reference, candidate = (
        record_run(tmp_path / "a", is_broken=False),
        record_run(tmp_path / "b", is_broken=False, eps=0.1),
    )
    page = run_page(view_run(candidate, against=reference))
    assert page.sections[:3] == ["verdict", "loss", "compared"]
    assert "<h1>b against a</h1>" in page.html


def test_a_run_with_nothing_in_it_still_has_a_page(tmp_path: Path):
    page = run_page(view_run(write_metrics_run(tmp_path / "run", [])))
    assert page.sections == ["verdict", "steps", "recipe", "settings"]
    assert "Nothing was watched: no training step was seen in this process." in page.html
    assert "No step was recorded" in page.html


@pytest.mark.parametrize(
    ("name", "damaged"),
    [("metrics-rank0.jsonl", {"loss", "norms"}), ("events/rank0-part-00000.parquet", {"steps", "sites", "exponents"})],
)
def test_a_damaged_file_is_reported_and_the_rest_is_shown(name: str, damaged: set[str], tmp_path: Path):
    run = diagnosed(record_run(tmp_path / "run"))
    (run.path / name).write_bytes(b"broken\n" * 20)
    page = run_page(view_run(run))
    assert page.sections == ["verdict", "loss", "norms", "steps", "sites", "exponents", "recipe", "settings"]
    sections = dict(re.findall(r'<section id="(\w+)">(.*?)</section>', page.html, re.S))
    assert {key for key, body in sections.items() if name.rpartition("/")[2] in body} == damaged


def test_a_section_more_needs_a_function_more(tmp_path: Path):
    view = view_run(write_metrics_run(tmp_path / "run", [1.0]))
    assert run_page(view, makers=SECTIONS[:1]).sections == ["verdict"]
