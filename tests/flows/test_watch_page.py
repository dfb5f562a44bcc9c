"""Does what docs/watch.md tells readers to type, with the files that the page shows."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "watch.md").read_text()
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.S | re.M)
CONSOLE = re.compile(r"^(?<!-->\n)```console\n(.*?)^```$", re.S | re.M)


def steps() -> list[tuple[str, str]]:
    """Return every command of the page that shows its output."""
    blocks = [block for block in CONSOLE.findall(PAGE) if block.count("\n") > 1]
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.M)[1:]]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


@pytest.mark.slow
def test_everything_on_the_page_happens_as_it_says(tmp_path: Path):
    for name, text in FILE.findall(PAGE):
        (tmp_path / name).write_text(f"# {name}\n{text}")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    commands = steps()
    assert len(commands) == 6
    for command, expected in commands:
        program, *words = command.split()
        start = [sys.executable, "-m", "roundoff"] if program == "roundoff" else [sys.executable]
        answer = subprocess.run(
            [*start, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        shown = answer.stdout + answer.stderr
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.OutputChecker().check_output(expected, shown, flags), f"$ {command}\n{shown}"
