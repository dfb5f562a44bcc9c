"""Evaluation inputs of another scale are reported; those that vary as the training's do are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.data.eval_inputs import differing_scales
from roundoff.runs import BatchFacts, EvalInputProbe, ModuleFacts, Run, Structure
from tests.diagnose.findings import only
from tests.run_folders import tensor, write_run


def run_with(folder: Path, *, mean: float, std: float, spreads: tuple[float, ...] = (1.0, 1.1, 0.9, 1.0)) -> Run:
    look = Structure(step=0, modules=(ModuleFacts(site="<model>", kind="Net", training=True),))
    batches = [
        BatchFacts(step=step, tensors=(tensor("<model>[0]", (8, 4), mean=0.02 * step, std=spread),))
        for step, spread in enumerate(spreads)
    ]
    seen = EvalInputProbe(step=3, place="<model>[0]", shape=(8, 4), mean=mean, std=std, min=mean - std, max=mean + std)
    return write_run(folder, look, batches, seen)


@pytest.mark.parametrize(("mean", "std"), [(120.0, 70.0), (0.0, 0.01), (12.0, 1.0)])
def test_another_scale_in_eval_mode_is_named_with_both(tmp_path: Path, mean: float, std: float) -> None:
    finding = only(differing_scales, run_with(tmp_path / "run", mean=mean, std=std))
    assert (finding.rule, finding.site, finding.phase) == ("eval-input-scale", "<model>", "eval")
    assert "standard deviation 1;" in finding.why


def test_moderate_differences_and_trainings_without_a_scale_are_fine(tmp_path: Path) -> None:
    assert differing_scales(run_with(tmp_path / "near", mean=0.5, std=0.3)) == []
    assert differing_scales(run_with(tmp_path / "constant", mean=0.0, std=0.0)) == []
    assert differing_scales(run_with(tmp_path / "varied", mean=0.0, std=9.0, spreads=(0.1, 5.0, 1.0, 10.0))) == []
