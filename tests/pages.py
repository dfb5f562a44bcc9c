"""Runs what pages tell readers to type, in the order of the page, in one folder.

- Every ```python block is executed; the blocks of a page share their names, like one script.
- Every `$ ...` line of a ```console block, and every line of a ```sh block, is a command. `make TARGET` must be a
  target of the Makefile; anything else is run. The lines below a `$ ...` are its output, where `...` or `…` means
  anything; a block that shows no output asks for none.
- `<!-- not run: why -->` above a block, which no reader sees, leaves the block out.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a command ended, what it printed that a page may show, and what it printed on stderr."""

    code: int
    shown: str
    errors: str = ""


def in_a_shell(line: str) -> Answer:
    """Run a command in the current folder; a page shows what it prints on stdout."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    answer = subprocess.run(line, shell=True, env=environment, capture_output=True, text=True, timeout=300)
    return Answer(code=answer.returncode, shown=answer.stdout, errors=answer.stderr)


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


def run_page(page: str, *, name: str, run: Callable[[str], Answer] = in_a_shell) -> None:
    """Do what the page says, in the current folder; `run` runs its commands."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, name, "exec"), namespace)
        elif block.language in ("console", "sh"):
            for command in commands_of(block):
                run_command(command, run)


def run_command(command: Command, run: Callable[[str], Answer]) -> None:
    """Run one line and compare what it prints; a `make` is only looked up."""
    first, *words = command.line.split()
    if first == "make":
        targets = MAKE_TARGET.findall((ROOT / "Makefile").read_text())
        assert [word for word in words if "=" not in word and word not in targets] == []
        return
    answer = run(command.line)
    assert answer.code in (0, 1), f"{command.line}\n{answer.shown}\n{answer.errors}"
    if command.output:
        assert_shown(command.output, answer.shown)


def assert_shown(expected: str, printed: str) -> None:
    """Compare word for word, whatever the white space."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    expected = expected.replace("…", "...")
    assert doctest.OutputChecker().check_output(expected, printed, flags), (
        f"the page shows:\n{expected}\nnot:\n{printed}"
    )
