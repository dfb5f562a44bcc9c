"""`make docs` builds all pages without a warning, and none of them asks another host for anything."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs.api_pages import public_modules, public_names
from docs.rule_pages import CODES

ROOT = Path(__file__).parents[2]
ASSETS = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "audio": "src",
    "video": "src",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert (answer.returncode, answer.stderr) == (0, "")
    return folder


def test_there_is_a_page_for_every_rule_every_example_and_every_page_of_docs(site: Path):
    rules = {f"rules/{code}.html" for code in CODES}
    examples = {f"examples/{path.name}/index.html" for path in (ROOT / "examples").iterdir() if path.is_dir()}
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in rules | examples | pages if not (site / page).exists()} == set()


@pytest.mark.parametrize("module", public_modules())
def test_every_public_name_is_in_the_reference(site: Path, module: str):
    page = (site / "api" / f"{module}.html").read_text()
    names = public_names(importlib.import_module(module))
    shown = re.findall(r'<h2 id="roundoff[\w.]*\.(\w+)"', page)
    assert sorted(shown) == sorted(name for name in names if name != "__version__")


def test_no_page_asks_another_host_for_anything(site: Path):
    requested = {asset for page in site.rglob("*.html") for asset in assets_of(page.read_text()) if is_elsewhere(asset)}
    styles = {url for sheet in site.rglob("*.css") for url in re.findall(r"url\(['\"]?([^)'\"]+)", sheet.read_text())}
    assert requested == set()
    assert {url for url in styles if is_elsewhere(url)} == set()


def test_an_asset_of_another_host_would_be_seen():
    page = '<link rel="stylesheet" href="//fonts.example/a.css"><a href="https://a.example"></a><script src="b.js">'
    assert [asset for asset in assets_of(page) if is_elsewhere(asset)] == ["//fonts.example/a.css"]


def test_the_checklist_leads_to_the_rules_and_the_benchmarks_show_their_figures(site: Path):
    assert 'href="rules/overflow.html"' in (site / "my-training-is-wrong.html").read_text()
    assert 'href="../rules/overflow.html"' in (site / "zh" / "my-training-is-wrong.html").read_text()
    assert "benchmarks/record_step.py" in (site / "benchmarks.html").read_text()


def assets_of(page: str) -> Iterator[str]:
    """Yield the address of everything that a browser fetches to show a page; links to follow are none of it."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            values = dict(attrs)
            if tag in ASSETS and (address := values.get(ASSETS[tag])) and values.get("rel") not in ("next", "prev"):
                found.append(address)

    Reader().feed(page)
    yield from found


def is_elsewhere(address: str) -> bool:
    return address.startswith(("http:", "https:", "//"))
