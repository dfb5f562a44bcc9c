"""What `roundoff run` costs before and around a script: no module is loaded that the script does without."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

TINY = """
import json, sys, torch
model = torch.nn.Linear(4, 1)
for step in range(25):
    torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
import atexit
atexit.register(lambda: print(json.dumps(sorted(sys.modules))))
"""

HEAVY = {
    "sympy", "torch.distributed.tensor", "torch.distributed.fsdp", "torch._dynamo", "torch._inductor",
    "transformers", "matplotlib", "pandas", "lightning", "accelerate", "rich", "ray",
}  # fmt: skip


def test_watching_loads_nothing_heavy_that_the_script_does_without(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TINY)
    loaded: list[set[str]] = []
    for prefix in ([], ["-m", "roundoff", "run"]):
        answer = subprocess.run(
            [sys.executable, *prefix, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        loaded.append(set(json.loads(answer.stdout)))
    bare, watched = loaded
    assert "watched 25 steps" in answer.stderr
    assert sorted(HEAVY & (watched - bare)) == []


def test_the_last_line_counts_what_roundoff_did_before_the_script_began(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint(time.perf_counter())\n" + TINY)
    began = time.perf_counter()
    answer = subprocess.run(
        [sys.executable, "-m", "roundoff", "run", "train.py"], cwd=tmp_path, capture_output=True, text=True,
        timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    before_script = float(answer.stdout.splitlines()[0]) - began
    said = re.search(r"watched 25 steps in ([\d.]+) s; roundoff added .*\bstart ([\d.]+) s", answer.stderr)
    assert said is not None
    assert 0.05 <= float(said[2]) <= min(before_script, float(said[1]))
