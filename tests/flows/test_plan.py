"""A journey: `roundoff plan` names what fp16 spoils, and writes a recipe with which the training is as good as in fp32.

`plans/` holds the scripts.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from roundoff.cli import command_line
from roundoff.experiments.trials.targets import ScriptTarget
from roundoff.experiments.trials.trial import TrialSetting
from roundoff.precision import find_recipe
from roundoff.record.script import Script

SCRIPTS = Path(__file__).parent / "plans"


class Ended(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def plan(self) -> dict[str, Any]:
        """What the command answered, on its last line; the script may have printed before."""
        found = json.loads(self.stdout.splitlines()[-1])
        assert isinstance(found, dict)
        return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the scripts in it, where commands are run."""
    for script in SCRIPTS.glob("*.py"):
        shutil.copy(script, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def roundoff(*words: str) -> Ended:
    """Run a command in this process; so do its trainings, with `--jobs 0`."""
    ended = CliRunner().invoke(command_line, words)
    return Ended(ended.exit_code, ended.stdout, ended.stderr)


def plan(*words: str) -> Ended:
    return roundoff("plan", "--jobs", "0", *words)


def millimetres_off(recipe: str, *, folder: Path, capsys: pytest.CaptureFixture[str]) -> float:
    """Train the diverging net with a recipe, and return how far its lengths are off."""
    subject = ScriptTarget(script=Script(target="diverging.py", args=("60",)), working_folder=folder)
    task = subject.task(TrialSetting(recipe=recipe), folder=folder / "trial")
    assert task.call(task.argument).exit_code == 0
    return float(capsys.readouterr().out.split()[-2])


@pytest.mark.slow
def test_an_overflow_and_an_underflow_are_named_and_the_recipe_trains(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = plan("--steps", "40", "-o", "planned.toml", "--json", "diverging.py", "60")
    assert ended.code == 0, ended.stderr
    found = ended.plan
    reasons = {each["site"]: " ".join(each["reasons"]) for each in found["wide"]}
    assert set(reasons) == {"blocks.1.attn", "length_loss", "length_loss.head"}
    assert "matmul overflow" in reasons["blocks.1.attn"]
    assert "underflow: of its gradients" in reasons["length_loss"]
    assert found["narrow_parameters"] >= 0.9
    assert found["verification"]["good"]
    assert max(found["verification"]["losses"]) <= found["verification"]["limit"]
    assert "\n# matmul overflow" in (folder / "planned.toml").read_text()
    # What the sum of the losses does not tell: the small one learns, too.
    recipes = ("fp32", "planned.toml", "half")
    plain, planned, half = (millimetres_off(recipe, folder=folder, capsys=capsys) for recipe in recipes)
    assert planned == pytest.approx(plain, rel=0.05)
    assert math.isnan(half)


@pytest.mark.slow
def test_a_healthy_net_is_narrow_everywhere_and_the_plan_says_so(folder: Path) -> None:
    ended = plan("--steps", "30", "healthy.py", "30")
    assert ended.code == 0, ended.stderr
    assert ended.stdout.startswith(
        "fp16 everywhere: 100 % of the parameters are narrow, and it trains as well as fp32.\n"
    )
    assert find_recipe(folder / "runs" / "plan-1" / "recipe.toml").overrides == {}


@pytest.mark.slow
def test_a_norm_that_must_be_wide_is(folder: Path) -> None:
    ended = plan("--base", "O3", "--steps", "30", "--json", "narrow_norm.py", "30")
    assert ended.code == 0, ended.stderr
    assert ended.plan["overrides"] == {"norm": "fp32"}
    assert ended.plan["verification"]["good"]


@pytest.mark.slow
def test_what_the_measured_step_does_not_show_is_found_by_training(folder: Path) -> None:
    ended = plan("--steps", "20", "--json", "late_overflow.py", "20")
    assert ended.code == 0, ended.stderr
    assert ended.plan["overrides"] == {"energy": "fp32"}
    assert "energy must be wide" in " ".join(ended.plan["tried"])


def test_a_script_that_knows_no_recipes_gets_a_proposal_that_was_not_tried(folder: Path) -> None:
    ended = plan("without_recipe.py")
    assert ended.code == 1
    assert ended.stdout.startswith("fp16 everywhere: 100 % of the parameters are narrow, not verified.\n")
    assert "the script never calls apply_recipe" in ended.stdout
    assert (
        'use       model, optimizer = roundoff.apply_recipe(model, optimizer, "runs/plan-1/recipe.toml")'
        in ended.stdout
    )


@pytest.mark.slow
def test_a_run_says_itself_what_is_to_be_planned(folder: Path) -> None:
    watched = subprocess.run(
        [sys.executable, "-m", "roundoff", "run", "--name", "bad", "diverging.py", "4"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        timeout=300,
    )
    assert watched.returncode == 0
    ended = plan("--no-verify", "--json", "runs/bad")
    assert ended.code == 0, ended.stderr
    assert ended.plan["subject"] == "diverging.py 4"
    assert "blocks.1.attn" in ended.plan["overrides"]


@pytest.mark.slow
def test_an_interrupted_plan_goes_on_and_repeats_no_training(folder: Path) -> None:
    words = [sys.executable, "-m", "roundoff", "plan", "--steps", "20", "healthy.py", "20"]
    kept = folder / "runs" / "plan-1" / "trials.jsonl"
    with subprocess.Popen(
        words, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 120
        while not (kept.exists() and kept.read_text().count("\n") >= 2) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        reported = process.stderr.read()
    assert process.returncode == 130
    assert "every finished training is kept. To resume: roundoff plan --steps 20 healthy.py 20" in reported
    before = kept.read_text()
    assert not (folder / "runs" / "plan-1" / "answer.json").exists()

    again = plan("--steps", "20", "healthy.py", "20")
    assert again.code == 0, again.stderr
    assert kept.read_text().startswith(before)
    assert kept.read_text().count("\n") == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("train", "--width", "8", "--threads", "1"),
        (
            "train",
            "--data",
            "text:healthy.py",
            "--width",
            "32",
            "--context",
            "32",
            "--batch-size",
            "8",
            "--threads",
            "1",
        ),
    ],
)
def test_settings_of_train_are_planned_and_the_recipe_trains(words: tuple[str, ...], folder: Path) -> None:
    ended = plan("--steps", "20", "--seeds", "2", "--json", "-o", "planned.toml", *words)
    assert ended.code == 0, ended.stderr
    assert ended.plan["narrow_parameters"] == 1.0
    trained = roundoff(*words, "--steps", "5", "--recipe", "planned.toml")
    assert trained.code == 0, trained.stderr


@pytest.mark.slow
@pytest.mark.parametrize("what", [("--activations", "25%"), ("--fixed", "8")])
def test_activations_and_fixed_point_are_planned_for_settings_of_train(what: tuple[str, str], folder: Path) -> None:
    words = ("train", "--width", "4", "--limit", "512", "--threads", "1")
    ended = plan(*what, "--steps", "20", "--seeds", "2", "--json", "-o", "planned.toml", *words)
    assert ended.code == 0, ended.stderr
    recipe = find_recipe(folder / "planned.toml")
    assert recipe.activation_sites if what[0] == "--activations" else recipe.compute == "fixed"


def watch_drift(growth: str, *options: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    words = ["plan", "--watch", "half", "--every", "10", *options, str(SCRIPTS / "drifting.py"), growth]
    command = [sys.executable, "-m", "roundoff", *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)


def test_watching_names_the_layer_whose_results_grow_before_they_overflow(tmp_path: Path) -> None:
    ended = watch_drift("1.08", tmp_path=tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == "True half\n", "the recipe is that of --watch"
    grows = next(line for line in ended.stderr.splitlines() if "the result of 1 in fp16" in line)
    assert grows.startswith("roundoff: step 60: the result of 1 in fp16 reaches ")
    assert "at this pace a quarter of the largest number, 65504, is reached near step 1" in grows
    assert "margins of half reached a limit or shrink: 9 measured steps, 0 to 80." in ended.stderr


def test_watching_the_healthy_twin_finds_nothing(tmp_path: Path) -> None:
    ended = watch_drift("1.0", "--json", tmp_path=tmp_path)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout.splitlines()[-1])
    assert (answer["good"], answer["warnings"], answer["steps"]) == (True, [], [*range(0, 90, 10)])
    assert {margin["site"] for margin in answer["margins"]} == {"0", "1", "3", "<model>"}
