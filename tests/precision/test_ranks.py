"""Several ranks decide together, and keep their weights equal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "two_scaled_ranks.py"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["O2", "bf16-stochastic"])
def test_an_overflow_on_one_rank_skips_the_step_on_both(recipe: str, tmp_path: Path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(SCRIPT), str(tmp_path), recipe]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["overflows"] == [None, "0.weight", None]
    assert first["scale"] == 32768.0
