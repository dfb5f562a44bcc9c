"""Several ranks decide together, and keep their weights equal."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
EXACT_WHEN_SHARDED = ["O1", "O2", "bf16-master", "bf16-kahan", "fixed", "fp8", "fp32+ascend-fp16"]
NARROW_OPTIMIZER = {"half": 2**-10, "O3": 2**-10, "bf16": 2**-7}
"""Here torch's own fp16 and bf16 arithmetic rounds differently where a tensor's length differs."""


@pytest.mark.slow
def test_an_overflow_on_one_rank_skips_the_step_on_both(tmp_path: Path):
    recipes = ["O1", "O2", "bf16-stochastic"]
    first, second = answers_of_two_ranks("two_scaled_ranks.py", recipes, tmp_path)
    assert first == second
    for recipe in recipes:
        assert first[recipe]["overflows"] == [None, "0.weight", None]
        assert first[recipe]["scale"] == 32768.0


@pytest.mark.slow
def test_weights_that_fsdp_divides_train_as_copied_ones(tmp_path: Path):
    first, second = answers_of_two_ranks(
        "two_sharded_ranks.py", [*EXACT_WHEN_SHARDED, *NARROW_OPTIMIZER, "bf16-stochastic"], tmp_path
    )
    assert first == second
    native = first.pop("native")
    assert native.startswith("Recipe 'O2' cannot be computed natively on weights sharded by FSDP.\n  why: ")
    for recipe in EXACT_WHEN_SHARDED:
        assert first[recipe]["shift"] == 0.0, recipe
    for recipe, tolerance in NARROW_OPTIMIZER.items():
        assert first[recipe]["shift"] <= tolerance, recipe
    for recipe, answer in first.items():
        assert answer["skip"] == {"overflow": "1.first.weight", "scale": 32768.0, "moved": False}, recipe


def answers_of_two_ranks(script: str, recipes: list[str], out: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(HERE / script), str(out), *recipes]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]
