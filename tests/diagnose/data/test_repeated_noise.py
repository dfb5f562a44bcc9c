"""Noise of the batch's size that repeats is reported; noise for now and then, or of another size, is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.data.repeated_noise import repeated_numbers
from roundoff.runs import BatchFacts, RandomDrawsProbe, Run
from tests.diagnose.findings import only
from tests.run_folders import tensor, write_run


def run_with(folder: Path, **changes: Any) -> Run:
    facts: dict[str, Any] = {
        "step": 8, "first_step": 0, "function": "randn", "source": "train.py:9", "shape": (8, 4), "num_steps": 9,
        "num_distinct": 1, "hash": "a",
    }  # fmt: skip
    batches = [BatchFacts(step=step, tensors=(tensor(hash="a"),)) for step in range(9)]
    return write_run(folder, batches, RandomDrawsProbe(**{**facts, **changes}))


def test_the_line_is_named(tmp_path: Path) -> None:
    finding = only(repeated_numbers, run_with(tmp_path / "run"))
    assert (finding.rule, finding.source, finding.step) == ("random-numbers-repeated", "train.py:9", 0)
    assert "always the same" in finding.why


def test_noise_that_every_other_step_uses_counts_too(tmp_path: Path) -> None:
    finding = only(repeated_numbers, run_with(tmp_path / "run", step=30, num_distinct=2))
    assert "only 2 different sets" in finding.why


@pytest.mark.parametrize("changes", [{"shape": (5, 4)}, {"step": 80}, {"step": 30, "hash": "b"}])
def test_other_noise_is_fine(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert repeated_numbers(run_with(tmp_path / "run", **changes)) == []
