"""Several ranks decide together, and keep their weights equal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "two_scaled_ranks.py"


@pytest.mark.slow
def test_an_overflow_on_one_rank_skips_the_step_on_both(tmp_path: Path):
    recipes = ["O1", "O2", "bf16-stochastic"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(SCRIPT), str(tmp_path), *recipes]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first == second
    for recipe in recipes:
        assert first[recipe]["overflows"] == [None, "0.weight", None]
        assert first[recipe]["scale"] == 32768.0
