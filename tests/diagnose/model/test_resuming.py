"""Trainings that go on without the state of their optimizer, and loads that are meant so."""

from __future__ import annotations

from pathlib import Path

from roundoff.diagnose.model.checkpoint_loading import lost_optimizer_states
from roundoff.runs import Call, Metrics, Run, call_detail
from tests.diagnose.findings import only
from tests.run_folders import losses, write_run

LOAD = {"into": "Net", "missing": [], "num_missing": 0, "num_unexpected": 0, "num_keys": 4}


def step(number: int, *, is_fresh: bool = False, lr: float = 0.1) -> Call:
    detail = {"optimizer": "Adam", "lr": [lr], **({"is_fresh": True} if is_fresh else {})}
    return Call(step=number, call="step", detail=call_detail("step", detail))


def resumed(
    folder: Path,
    *,
    at: int,
    keys: list[str],
    is_fresh: bool = True,
    lr: float = 0.1,
    after: float = 1.0,
    saved_rates: list[float] | None = None,
) -> Run:
    """Write a training that falls from 2 to 1 and loads a checkpoint at one of its steps."""
    calls: list[Call] = []
    for number in range(40):
        if number == at:
            calls.append(
                Call(
                    step=number,
                    call="read",
                    detail=call_detail("read", {"optimizer_states": keys, "optimizer_rates": saved_rates}),
                )
            )
            calls.append(Call(step=number, call="load", detail=call_detail("load", LOAD)))
        calls.append(step(number, is_fresh=number == 0 or (number == at and is_fresh), lr=lr if number >= at else 0.1))
    values = [2 - min(number, 20) / 20 if number < at else after for number in range(40)]
    metrics: list[Metrics] = losses(*values)
    return write_run(folder, calls, metrics)


def test_state_that_was_read_and_not_loaded_is_reported_with_its_key(tmp_path: Path) -> None:
    finding = only(lost_optimizer_states, resumed(tmp_path / "run", at=0, keys=["opt"]))
    assert (finding.rule, finding.step) == ("optimizer-state-lost", 0)
    assert "checkpoint['opt']" in finding.fix


def test_a_training_that_goes_on_with_a_new_optimizer_is_reported_at_its_step(tmp_path: Path) -> None:
    assert only(lost_optimizer_states, resumed(tmp_path / "run", at=30, keys=[])).step == 30


def test_fine_tuning_resuming_in_full_a_new_start_and_another_rate_are_fine(tmp_path: Path) -> None:
    assert lost_optimizer_states(resumed(tmp_path / "tuned", at=0, keys=[])) == []
    assert lost_optimizer_states(resumed(tmp_path / "full", at=30, keys=["opt"], is_fresh=False)) == []
    assert lost_optimizer_states(resumed(tmp_path / "anew", at=30, keys=[], after=2.0)) == []
    assert lost_optimizer_states(resumed(tmp_path / "rate", at=30, keys=[], lr=0.01)) == []


def test_state_of_an_optimizer_with_another_rate_is_left_on_purpose(tmp_path: Path) -> None:
    assert lost_optimizer_states(resumed(tmp_path / "other", at=0, keys=["opt"], saved_rates=[0.3, 0.001])) == []
    found = lost_optimizer_states(resumed(tmp_path / "same", at=0, keys=["opt"], saved_rates=[0.001, 0.1]))
    assert [finding.rule for finding in found] == ["optimizer-state-lost"]
