"""Runs what the pages tell readers to type, in the order of the page, in one empty folder.

- Every ```python block is executed; the blocks of a page share their names, like one script.
- Every `$ ...` line of a ```console block, and every line of a ```sh block, is a command. `make TARGET` must be a
  target of the Makefile; anything else is run. The lines below a `$ ...` are its output, where `...` or `…` stands for
  anything; a block that shows no output asks for none.
- `<!-- not run: why -->` above a block, which no reader sees, leaves the block out.
"""

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SLOW_PAGES = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("docs/train.md", "docs/porting.md", "docs/checkpoints.md")
]
PAGES = ["README.md", "CONTRIBUTING.md", "docs/comparing-runs.md", "docs/tensors.md", *SLOW_PAGES]
BLOCK = re.compile(r"^(?P<skip><!-- not run: [^\n]+ -->\n+)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.S | re.M)
MAKE_TARGET = re.compile(r"^([a-z-]+):", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    language: str
    text: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    line: str
    output: str


def blocks_of(page: str) -> Iterator[Block]:
    """Yield what is to be run, with the line where its text begins."""
    for match in BLOCK.finditer(page):
        if not match["skip"]:
            yield Block(language=match["language"], text=match["text"], line=page.count("\n", 0, match.start("text")))


def commands_of(block: Block) -> Iterator[Command]:
    """Yield the commands of a block, each with the output that the page shows for it."""
    if block.language == "sh":
        yield from (Command(line=line, output="") for line in block.text.splitlines() if line.strip())
        return
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        line, _, output = part.partition("\n")
        yield Command(line=re.split(r"\s+# ", line)[0], output=output.strip())


def run_page(page: str, *, name: str) -> None:
    """Do what the page says, in the current folder."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, name, "exec"), namespace)
        elif block.language in ("console", "sh"):
            for command in commands_of(block):
                run_command(command)


def run_command(command: Command) -> None:
    """Run one line and compare what it prints; a `make` is only looked up."""
    first, *words = command.line.split()
    if first == "make":
        targets = MAKE_TARGET.findall((ROOT / "Makefile").read_text())
        assert [word for word in words if "=" not in word and word not in targets] == []
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    answer = subprocess.run(
        command.line, shell=True, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300
    )
    assert answer.returncode in (0, 1), f"{command.line}\n{answer.stderr}"
    if command.output:
        assert_shown(command.output, answer.stdout)


def assert_shown(expected: str, printed: str) -> None:
    """Compare word for word, whatever the white space."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    expected = expected.replace("…", "...")
    assert doctest.OutputChecker().check_output(expected, printed, flags), (
        f"the page shows:\n{expected}\nnot:\n{printed}"
    )


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
