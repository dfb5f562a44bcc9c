"""`roundoff demo`, typed by a newcomer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from roundoff.runs import Run


def roundoff(*args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "roundoff", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_the_demo_names_the_op_the_site_the_step_and_the_line(tmp_path: Path) -> None:
    done = roundoff("demo", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "overflow   attention / aten.bmm#0   step 41, forward" in done.stdout
    assert "train/demo_training.py:" in done.stdout
    run = Run.open(tmp_path / "runs" / "demo-1")
    assert len(run.steps) == 60
    findings = run.findings()
    assert findings is not None
    assert [finding.rule for finding in findings] == ["overflow"]


def test_the_demo_answers_a_machine_as_json(tmp_path: Path) -> None:
    done = roundoff("demo", "--json", folder=tmp_path)
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)
    assert (finding["rule"], finding["step"], finding["site"], finding["op"]) == (
        "overflow",
        41,
        "attention",
        "aten.bmm#0",
    )
