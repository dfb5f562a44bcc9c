"""What can be done with runs and files where torch is not installed, and what is said about the rest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file

from roundoff.cli import NEED_TORCH
from tests.report.sample_runs import record_run

ROOT = Path(__file__).parents[1]
NO_TORCH = """
import sys

sys.modules["torch"] = None  # importing it fails, and find_spec finds nothing
sys.modules["pyarrow"] = None  # tests have it, users need not
"""
RUN_COMMANDS = """
import json, os, sys
from click.testing import CliRunner
from roundoff.cli import command_line

answers = []
for arguments in json.loads(sys.argv[1]):
    answer = CliRunner().invoke(command_line, arguments)
    answers.append([answer.exit_code, answer.stdout, answer.stderr])
print(json.dumps(answers))
"""
SERVE = """
import sys
from tests.serve.serving import serving

with serving(__import__("pathlib").Path(sys.argv[1])) as server:
    for path in ("/", "/runs/a", "/runs/a/page", "/runs/a/tensors", "/compare?reference=a&candidate=b"):
        print(path, server.ask(path).status)
"""


class Answer(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


class Laptop:
    """A folder with two runs and a checkpoint, and a Python without torch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "python").mkdir()
        (folder / "python/sitecustomize.py").write_text(NO_TORCH)

    def python(self, code: str, *arguments: str) -> str:
        paths = [self.folder / "python", ROOT]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        command = [sys.executable, "-c", code, *arguments]
        answer = subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=600, check=False
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def roundoff(self, *commands: str) -> list[Answer]:
        """Run commands one after the other in one process."""
        written = json.dumps([command.split() for command in commands])
        return [Answer(*each) for each in json.loads(self.python(RUN_COMMANDS, written).splitlines()[-1])]


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    folder = tmp_path_factory.mktemp("laptop")
    record_run(folder / "runs/a", is_broken=False)
    record_run(folder / "runs/b")
    save_file({"fc.weight": torch.ones(2, 3, dtype=torch.bfloat16)}, folder / "model.safetensors")
    torch.save({"fc.weight": torch.ones(2, 3)}, folder / "model.pt")
    return Laptop(folder)


def test_importing_roundoff_imports_nothing_heavy(laptop: Laptop):
    code = "import sys, roundoff, roundoff.cli; print({'numpy', 'backports.zstd', 'plotly', 'rich'} & set(sys.modules))"
    assert laptop.python(code) == "set()\n"


def test_runs_are_listed_shown_diagnosed_compared_and_reported(laptop: Laptop):
    listed, shown, diagnosed, same, other, steps, reported, against = laptop.roundoff(
        "runs",
        "runs show runs/a --step 0",
        "diagnose runs/b --explain",
        "compare runs/a runs/a",
        "compare runs/a runs/b",
        "compare runs/a@0 runs/a@1",
        "report runs/b --output b.html",
        "report runs/b --against runs/a --output against.html",
    )
    assert (listed.exit_code, "runs/a" in listed.stdout or "a " in listed.stdout) == (0, True)
    assert (shown.exit_code, "aten." in shown.stdout) == (0, True)
    assert (diagnosed.exit_code, "overflowed" in diagnosed.stdout) == (1, True)
    assert (same.exit_code, other.exit_code) == (0, 1)
    assert steps.exit_code in (0, 1), steps
    assert (reported.exit_code, against.exit_code) == (0, 0)
    assert "overflowed" in (laptop.folder / "b.html").read_text()
    assert not any(answer.stderr for answer in (listed, shown, diagnosed, same, other, steps))


def test_runs_are_served(laptop: Laptop):
    pages = [line.split() for line in laptop.python(SERVE, "runs").splitlines()]
    assert [status for _, status in pages] == ["200"] * len(pages) != []


def test_names_formats_recipes_and_pages_are_printed(laptop: Laptop):
    for answer in laptop.roundoff("formats", "recipes", "recipes show O2", "docs", "docs install"):
        assert (answer.exit_code, answer.stderr) == (0, "")
        assert answer.stdout


def test_a_checkpoint_is_listed_without_its_values(laptop: Laptop):
    for listed in laptop.roundoff("params model.safetensors", "params model.pt"):
        assert listed.exit_code == 2  # whether it holds NaN is not known
        assert "values     not looked at: that needs torch (pip install torch)" in listed.stdout
        assert "2x3" in listed.stdout
    (answer,) = laptop.roundoff("params model.safetensors --json")
    found: dict[str, Any] = json.loads(answer.stdout)
    assert found["has_values"] is False
    assert [(item["name"], item["shape"], item["mean"]) for item in found["tensors"]] == [("fc.weight", [2, 3], None)]


def test_doctor_finds_no_problem(laptop: Laptop):
    # The metadata of the installed torch is still there, as if its files were damaged.
    (answer,) = laptop.roundoff("doctor")
    assert answer.stdout.splitlines()[:2] == [
        "roundoff does not work here: 1 problem.",
        "  torch cannot be imported: import of torch halted; None in sys.modules",
    ]


def test_a_command_that_needs_torch_says_so_in_one_line_and_still_has_its_help(laptop: Laptop):
    words = {
        "replay": "runs/b",
        "what-if": "runs/b --builder x.py:y --lr 1",
        "convert": "model.pt to.safetensors",
        "sweep": "x.toml",
    }
    words |= dict.fromkeys(("record", "run", "bisect", "plan"), "x.py")
    said = laptop.roundoff(*(f"{name} {words.get(name, '')}" for name in NEED_TORCH))
    for name, answer in zip(NEED_TORCH, said, strict=True):
        assert (answer.exit_code, answer.stdout) == (2, ""), name
        assert re.fullmatch(
            rf"UsageError: (`roundoff {name}`|This) needs torch, which is not installed here: pip install torch\n",
            answer.stderr,
        )
    assert {answer.exit_code for answer in laptop.roundoff(*(f"{name} --help" for name in NEED_TORCH))} == {0}


def test_a_question_that_needs_torch_says_so_in_one_line(laptop: Laptop):
    said = "UsageError: This needs torch, which is not installed here: pip install torch\n"
    for answer in laptop.roundoff("compare model.pt model.pt", "formats 70000", "params torch.nn:Linear"):
        assert answer == (2, "", said)
    (answer,) = laptop.roundoff("doctor --self-test")
    assert answer == (2, "", said.replace("This", "`roundoff doctor --self-test`"))
