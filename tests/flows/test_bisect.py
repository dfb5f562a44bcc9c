"""`roundoff bisect`, typed by a user whose training breaks in fp16, who stops it half-way and resumes it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PLANTED = Path(__file__).parents[1] / "experiments" / "bisect" / "planted_overflow.py"
COMMAND = (sys.executable, "-m", "roundoff", "bisect")


def bisect(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def answer(*words: str, folder: Path) -> dict[str, Any]:
    ended = bisect("--json", *words, folder=folder)
    assert ended.returncode == 1, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def settings_tried(folder: Path) -> list[str]:
    lines = (folder / "runs" / "bisect-1" / "trials.jsonl").read_text().splitlines()
    return [json.dumps(json.loads(line)["setting"]) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(("culprit", "num_sites"), [(17, 26), (60, 100)])
def test_one_culprit_is_found_to_the_op_in_three_runs_with_the_measured_step(
    tmp_path: Path, culprit: int, num_sites: int
) -> None:
    found = answer(str(PLANTED), str(culprit), str(num_sites), folder=tmp_path)
    assert found["found"] == [f"{culprit}:mul"]
    assert found["modules"] == [f"{culprit}"]
    assert found["num_sites"] == num_sites
    assert found["is_minimal"] is True
    assert found["num_runs"] <= 3
    assert found["num_other_runs"] == 5  # unchanged, every site wide, and the reference with three seeds


@pytest.mark.slow
def test_two_independent_culprits_among_fifty_are_both_found_and_proven(tmp_path: Path) -> None:
    found = answer(str(PLANTED), "11,40", "50", folder=tmp_path)
    assert set(found["found"]) == {"11:mul", "40:mul"}
    assert set(found["without"].values()) == {"loss nan at step 0"}
    assert found["num_runs"] <= 25


@pytest.mark.slow
def test_on_a_cluster_it_finds_the_same(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    found = answer("--on", "ray", str(PLANTED), "3", "8", folder=tmp_path)
    assert found["found"] == ["3:mul"]


@pytest.mark.slow
def test_interrupted_half_way_it_says_what_is_known_and_goes_on_without_repeating_a_run(tmp_path: Path) -> None:
    words = ("--modules-only", str(PLANTED), "3,9", "12")
    trials = tmp_path / "runs" / "bisect-1" / "trials.jsonl"
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not (trials.exists() and trials.read_bytes().count(b"\n") >= 4):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to everybody
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert re.search(r"interrupted after \d runs of the search; culprits among \d+ sites", said)
    assert "To resume: roundoff bisect --modules-only" in said
    before = settings_tried(tmp_path)
    found = answer(*words, folder=tmp_path)
    assert sorted(found["found"]) == ["3", "9"]
    after = settings_tried(tmp_path)
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == found["num_runs"] + found["num_other_runs"]
