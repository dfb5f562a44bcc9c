"""docs/ci.md and action.yml do what they say: their commands run, and their options are those of the commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from roundoff.cli import command_line
from roundoff.cli.project_defaults import read_project_defaults
from tests.pages import ROOT, Answer, run_page
from tests.watch.script_server import ScriptServer

PAGE = (ROOT / "docs" / "ci.md").read_text()
TRAINING = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
target = torch.randn(8, 1)
for _ in range(60):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x @ target).backward()
    optimizer.step()
"""
WORSE = TRAINING.replace("lr=0.05", "lr=0.001")


def block_after(heading: str, language: str) -> str:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    match = re.search(rf"```{language}\n(.*?)```", section, re.S)
    assert match is not None
    return match[1]


def bash(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as CI servers do: it ends with the first command that fails."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(
        command, cwd=folder, env={**environment, **variables}, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_commands_of_the_page_run(tmp_path: Path, server: ScriptServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAINING)

    def run(line: str) -> Answer:
        ended = server.roundoff(shlex.split(line)[1:], folder=tmp_path)
        assert ended.code == 0, (line, ended.stdout, ended.stderr)
        return Answer(code=ended.code, shown=ended.stdout, errors=ended.stderr)

    run("roundoff run --name reference --seed 0 train.py")
    run_page(PAGE, name="ci.md", run=run)
    assert json.loads(Path("found.sarif").read_text())["runs"][0]["results"] == []
    assert all(Path(name).exists() for name in ("found.xml", "candidate.html", "comparison.html"))


def steps_of_action() -> list[dict[str, Any]]:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    return list(action["runs"]["steps"])


def test_the_action_uses_only_inputs_that_it_declares_and_has_a_shell_for_every_command() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(action["inputs"])
    assert all(each["description"] for each in action["inputs"].values())
    for step in steps_of_action():
        assert ("run" in step) == ("shell" in step) != ("uses" in step)
        assert "${{" not in step.get("run", "")  # inputs reach a shell as variables, never as code
    workflow = yaml.safe_load(block_after("GitHub", "yaml"))
    given = workflow["jobs"]["training"]["steps"][-1]["with"]
    assert given.keys() <= action["inputs"].keys()
    assert {name for name, each in action["inputs"].items() if each.get("required")} <= given.keys()


@pytest.mark.slow
def test_the_action_passes_a_good_change_and_refuses_a_bad_one(tmp_path: Path) -> None:
    (check,) = [step for step in steps_of_action() if step.get("id") == "check"]
    output, folder = tmp_path / "output", tmp_path / "roundoff-runs" / "training"
    variables = {"FOLDER": "roundoff-runs/training", "SCRIPT": "train.py --steps 9", "SEED": "0", "FAIL_ON": "warning"}
    variables |= {"GATE": "mean-loss=5%", "GITHUB_OUTPUT": str(output)}
    (tmp_path / "train.py").write_text(TRAINING)
    answer = bash(check["run"], tmp_path, **variables)
    assert (answer.returncode, output.read_text()) == (0, "code=0\n"), answer.stderr
    assert {path.name for path in folder.iterdir()} == {"candidate", "candidate.html", "found.sarif", "found.xml"}
    (folder / "candidate").rename(folder / "reference")
    (tmp_path / "train.py").write_text(WORSE)
    output.unlink()
    answer = bash(check["run"], tmp_path, **variables)
    assert (answer.returncode, output.read_text()) == (0, "code=1\n"), answer.stderr
    assert "mean-loss: failed" in answer.stdout
    assert (folder / "comparison.html").exists()


@pytest.mark.slow
def test_the_job_for_gitlab_passes_a_good_change_and_refuses_a_bad_one(tmp_path: Path) -> None:
    job = yaml.safe_load(block_after("GitLab", "yaml"))["training"]
    script = "\n".join(line for line in job["script"] if not line.startswith("pip install"))
    variables = {
        "CI_API_V4_URL": "http://127.0.0.1:9",
        "CI_PROJECT_ID": "1",
        "CI_JOB_TOKEN": "",
        "CI_DEFAULT_BRANCH": "m",
    }
    (tmp_path / "train.py").write_text(TRAINING)
    answer = bash(script, tmp_path, **variables)
    assert answer.returncode == 0, answer.stderr
    assert all((tmp_path / name).exists() for name in ("runs/candidate", "candidate.html", "found.xml"))
    assert job["artifacts"]["reports"] == {"junit": "found.xml"}
    shutil.move(tmp_path / "runs", tmp_path / "reference" / "runs")
    (tmp_path / "train.py").write_text(WORSE)
    answer = bash(script, tmp_path, **variables)
    assert answer.returncode == 1, answer.stderr
    assert set(job["artifacts"]["paths"]) <= {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}


def test_the_defaults_of_the_page_are_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = block_after("Defaults in pyproject.toml", "toml")
    assert tomllib.loads(text)["tool"]["roundoff"]
    Path("pyproject.toml").write_text(text)
    defaults = read_project_defaults()
    assert defaults is not None
    for name in ("run", "compare"):
        context = command_line.make_context("roundoff", ["--help"], resilient_parsing=True)
        assert command_line.get_command(context, name) is not None
        assert context.default_map[name]
