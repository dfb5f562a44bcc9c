"""Zeros that a wide replay does not have are named; zeros that it has, too, are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.numbers.underflow import underflowing_gradients
from roundoff.runs import Run, WideProbe, ZeroShares
from tests.run_folders import losses, parameter_rows, write_run


def probed(folder: Path, *, zero: float, wide: float) -> Run:
    shares = (ZeroShares(name="a.weight", zero_share=zero, wide_zero_share=wide, subnormal_share=0.1),)
    rows = [{"step": s, "parameter": "a.weight", "grad_zero_share": zero if s else 0.0} for s in range(3)]
    probe = WideProbe(step=2, loss=1.0, wide_loss=1.0, parameters=shares)
    return write_run(folder, parameter_rows(rows), probe, losses(1.0))


def test_zeros_that_a_wide_replay_does_not_have_are_named_with_the_first_step_that_has_them(tmp_path: Path) -> None:
    (finding,) = underflowing_gradients(probed(tmp_path / "run", zero=0.81, wide=0.11))
    assert (finding.rule, finding.step, finding.parameter) == ("gradient-underflow", 1, "a.weight")
    assert "81% of all gradient elements are 0" in finding.why
    assert "11% are 0" in finding.why


@pytest.mark.parametrize("wide", [0.9, 0.75])
def test_zeros_by_nature_are_fine(wide: float, tmp_path: Path) -> None:
    assert underflowing_gradients(probed(tmp_path / "run", zero=0.9, wide=wide)) == []


@pytest.mark.parametrize(("subnormal", "num_found"), [(0.3, 1), (0.01, 0)])
def test_without_a_probe_subnormal_gradients_decide(subnormal: float, num_found: int, tmp_path: Path) -> None:
    row = {"step": 0, "parameter": "a.weight", "grad_zero_share": 0.6, "grad_subnormal_share": subnormal}
    assert len(underflowing_gradients(write_run(tmp_path / "run", parameter_rows([row]), losses(1.0)))) == num_found
