"""Every example does what its page says: the commands are run, in order, and print what it shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.pages import ROOT, Answer, blocks_of, commands_of, in_a_shell, run_page
from tests.watch.script_server import ScriptServer

EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir())
NEEDS_A_SHELL = re.compile(r"[;|&<>$]")

pytestmark = pytest.mark.slow


def in_a_terminal(line: str, *, server: ScriptServer, folder: Path) -> Answer:
    """Run a command and show all that a terminal shows; where no shell is needed, without loading torch again."""
    program, *words = shlex.split(line)
    if NEEDS_A_SHELL.search(line) or program not in ("roundoff", "python"):
        return in_a_shell(f"{{ {line}; }} 2>&1")
    run = server.roundoff if program == "roundoff" else server.run
    ended = run(words, folder=folder)
    return Answer(code=ended.code, shown=ended.stdout + ended.stderr)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_example_does_what_it_says(
    example: Path, server: ScriptServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = shutil.copytree(example, tmp_path / example.name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    page = (folder / "README.md").read_text()
    run_page(page, name=example.name, run=lambda line: in_a_terminal(line, server=server, folder=folder))


def test_every_example_shows_what_its_commands_print_and_what_to_do_next():
    for example in EXAMPLES:
        page = (example / "README.md").read_text()
        shown = [command.output for block in blocks_of(page) for command in commands_of(block)]
        assert any(shown), example.name
        assert "\n## What to do next\n" in page, example.name


def test_the_list_of_examples_is_that_of_the_folders():
    listed = re.findall(r"\]\((\w+)/README\.md\)", (ROOT / "examples" / "README.md").read_text())
    assert listed == [example.name for example in EXAMPLES]
