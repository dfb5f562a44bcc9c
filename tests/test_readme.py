"""README, CONTRIBUTING and pages of docs do what they say; `tests/pages.py` tells what of a page is run, and how."""

from pathlib import Path

import pytest

from tests.pages import ROOT, blocks_of, commands_of, run_page

SLOW_PAGES = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("docs/train.md", "docs/bisect.md", "docs/plan.md", "docs/porting.md", "docs/checkpoints.md")
]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/index.md",
    "docs/install.md",
    "docs/api.md",
    "docs/comparing-runs.md",
    "docs/report.md",
    "docs/switches.md",
    "docs/tensors.md",
    *SLOW_PAGES,
]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_does_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run_page((ROOT / name).read_text(), name=name)


def test_the_readme_tells_how_to_see_it_and_how_to_test_it():
    commands = [command.line for block in blocks_of((ROOT / "README.md").read_text()) for command in commands_of(block)]
    assert {"make demo", "make test"} <= set(commands)


@pytest.mark.parametrize(
    "block",
    [
        "```python\nraise ValueError('wrong')\n```",
        "```python\nx = 1\n```\n```python\nassert x == 2\n```",
        "```console\n$ make no-such-target\n```",
        "```console\n$ roundoff no-such-command\n```",
        "```console\n$ echo one two\none three\n```",
        "```sh\nno-such-program\n```",
    ],
)
def test_a_page_that_does_not_work_is_found_out(block: str):
    with pytest.raises((ValueError, AssertionError)):
        run_page(f"Some words.\n\n{block}\n", name="planted.md")


@pytest.mark.parametrize(
    "block",
    [
        "```python\nx = 1\n```\n```python\nassert x == 1\n```",
        "<!-- not run: it would fail -->\n```python\nraise ValueError\n```",
        "```console\n$ echo one two three\none … three\n$ make test\n```",
        "```\nnot a command\n```",
    ],
)
def test_a_page_that_works_passes(block: str):
    run_page(f"Some words.\n\n{block}\n", name="planted.md")
