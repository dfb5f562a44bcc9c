"""`roundoff demo`, typed by a newcomer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from roundoff.cli.demo import STORY, PlayedChapter, read_demo_result
from roundoff.precision import find_recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the demo is called."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def reported(place: Path) -> str:
    """Return what the demo says in a pipe."""
    done = subprocess.run(
        [sys.executable, "-m", "roundoff", "demo"],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_demo_shows_every_command_and_what_it_answers(reported: str) -> None:
    commands = [line.removeprefix("$ ") for line in reported.splitlines() if line.startswith("$ ")]
    assert commands == [chapter.command for chapter in STORY]
    assert "\033" not in reported
    assert "overflow   attention / aten.bmm#0   step 33, forward" in reported
    assert "digits.py:33" in reported
    assert "step 33: the bad value appears again, at the same op.\n" in reported
    assert "--recipe fp32" not in reported  # the model has one already
    assert "fp16 everywhere except attention's own code: 100 % of the parameters are narrow" in reported
    assert "Nothing differs beyond what the formats explain" in reported


def test_the_demo_ends_with_the_three_accuracies(reported: str) -> None:
    table = reported.split("accuracy  loss\n")[1].splitlines()[:3]
    recipes, accuracies = zip(*((line.split()[0], float(line.split()[1])) for line in table), strict=True)
    assert recipes == ("fp32", "half", "planned.toml")
    reference, broken, planned = accuracies
    assert reference > 90
    assert broken < 20
    assert abs(planned - reference) <= 1
    assert table[1].endswith("NaN from step 33 on")


def test_the_demo_leaves_a_page_a_recipe_and_runs(reported: str, place: Path) -> None:
    folder = place / "runs" / "demo-1"
    assert "attention" in (folder / "report.html").read_text(encoding="utf-8")
    assert find_recipe(folder / "planned.toml").overrides["attention"] == "fp32"
    assert {path.name for path in (folder / "runs").iterdir()} == {"fp32", "half", "planned", "plan-1"}


def test_what_the_demo_found_can_be_had_as_json(reported: str, place: Path) -> None:
    folder = place / "runs" / "demo-1"
    played = [PlayedChapter(chapter=chapter, output=tuple(reported.splitlines()), seconds=1.0) for chapter in STORY]
    found = json.loads(json.dumps(read_demo_result(folder, played, seconds=7.0).to_object()))
    assert found["finding"]["rule"] == "overflow"
    assert found["finding"]["source"] == "digits.py:33"
    assert [training["first_nonfinite_step"] for training in found["trainings"]] == [None, 33, None]
    assert len(found["commands"]) == len(STORY)
    assert Path(found["page"]).is_file()
