"""`roundoff train`, typed by a user who stops it, resumes it, and looks at what it left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TINY = ("--limit", "128", "--batch-size", "32", "--width", "4", "--epochs", "2", "--threads", "1")


def roundoff(*args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "roundoff", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_a_training_is_stopped_resumed_and_found_among_the_runs(tmp_path: Path) -> None:
    stopped = roundoff("train", *TINY, "--steps", "3", folder=tmp_path)
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stdout.splitlines()[-1] == "run    runs/train-1"
    rest = roundoff("train", *TINY, "--resume", "runs/train-1", "--json", folder=tmp_path)
    assert rest.returncode == 0, rest.stderr
    answer = json.loads(rest.stdout)
    assert (answer["first_step"], answer["steps"], answer["run"]) == (3, 5, "runs/train-2")
    listed = roundoff("runs", folder=tmp_path)
    assert "train-1" in listed.stdout
    assert "train-2" in listed.stdout


def test_a_training_that_breaks_says_how_to_record_the_step_that_broke_it(tmp_path: Path) -> None:
    broken = roundoff("train", *TINY, "--lr", "1e30", folder=tmp_path)
    assert broken.returncode == 1
    label, program, *words = broken.stdout.splitlines()[-1].split()
    assert (label, program, *words[:4]) == ("next", "roundoff", "record", "--steps", "0-1", "-m")
    recorded = roundoff(*words, folder=tmp_path)
    assert recorded.returncode == 1, recorded.stderr
    assert "recorded 2 steps" in recorded.stderr
