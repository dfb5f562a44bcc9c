"""`roundoff skill`: SKILL.md is short, true and installed where an agent looks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from roundoff.cli import COMMANDS, command_line
from roundoff.cli.docs import pages
from roundoff.cli.skill import SKILL


def test_the_front_matter_and_the_body_are_as_short_as_agents_need_them():
    _, front, body = SKILL.read_text().split("---\n", 2)
    assert re.match(r"name: roundoff\ndescription: \S", front)
    assert len(front) / 4 < 150  # about four letters to a token
    assert len(body) / 4 < 5000


def test_every_command_and_page_that_it_names_exists():
    text = SKILL.read_text()
    named = set(re.findall(r"`roundoff ([a-z-]+)", text))
    assert named <= set(COMMANDS)
    topics = text.split("`roundoff docs TOPIC` prints one:")[1]
    assert set(re.findall(r"`([a-z-]+)`", topics)) <= set(pages())


@pytest.mark.parametrize(("words", "folder"), [([], ".agents/skills"), (["mine"], "mine")])
def test_is_installed_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], folder: str
):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command_line, ["skill", "--install", *words])
    assert result.stdout == f"{folder}/roundoff/SKILL.md\n"
    assert (tmp_path / folder / "roundoff" / "SKILL.md").read_text() == SKILL.read_text()


def test_without_install_it_is_printed():
    assert CliRunner().invoke(command_line, ["skill"]).stdout.strip() == SKILL.read_text().strip()


def test_llms_txt_lists_every_page_with_a_sentence():
    lines = CliRunner().invoke(command_line, ["docs", "--llms"]).stdout.splitlines()
    listed = [line for line in lines if line.startswith("- ")]
    assert lines[0] == "# roundoff"
    assert len(listed) == len([name for name in pages() if "/" not in name])
    assert all(re.fullmatch(r"- \[.+\]\(roundoff docs [\w-]+\): .+", line) for line in listed), listed
    assert "English" not in "".join(listed)
