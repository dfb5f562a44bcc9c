import re
from pathlib import Path

from click.testing import CliRunner

from roundoff.cli import command_line
from roundoff.cli.docs import pages

ROOT = Path(__file__).parents[2]
TOPIC = re.compile(r"roundoff docs ([a-z][a-z-]*)")


def test_without_a_topic_the_pages_are_listed_with_their_titles():
    answer = CliRunner().invoke(command_line, ["docs"])
    assert answer.exit_code == 0
    assert "\nwatch                    Watch a training\n" in answer.output
    assert "\nzh/watch                 监控训练\n" in answer.output
    assert len(answer.output.splitlines()) == len(list((ROOT / "docs").rglob("*.md")))


def test_a_page_is_printed_by_its_name_or_its_file():
    for topic in ("exit-codes", "docs/exit-codes.md", "zh/install"):
        page = (ROOT / "docs" / topic.removeprefix("docs/")).with_suffix(".md").read_text()
        answer = CliRunner().invoke(command_line, ["docs", topic])
        assert (answer.exit_code, answer.output) == (0, page)


def test_an_unknown_topic_gets_a_guess():
    answer = CliRunner().invoke(command_line, ["docs", "wacth"])
    assert answer.exit_code == 2
    assert answer.stderr == "UsageError: There is no page 'wacth'.\n  fix: did you mean 'watch'?\n"


def test_messages_name_pages_that_exist_and_that_a_wheel_has():
    sources = {path: path.read_text() for path in (ROOT / "src").rglob("*.py")}
    named = {topic for text in sources.values() for topic in TOPIC.findall(text)}
    assert {"watch", "recipes", "switches"} <= named
    assert named <= set(pages())
    # A path in the repository means nothing to who installed a wheel; docstrings and comments may have one.
    in_messages = [
        f"{path.name}: {line.strip()}"
        for path, text in sources.items()
        for line in text.splitlines()
        if re.search(r"docs/[a-z-]+\.md", line) and re.search(r'(fix|why)=|f?"[^"]*docs/[a-z-]+\.md[^"]*"[,)\]]', line)
    ]
    assert in_messages == []
