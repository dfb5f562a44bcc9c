from pathlib import Path

import numpy as np
import pytest

from roundoff.diagnose.diagnosis import RunView
from roundoff.report.run_page import section as room
from roundoff.report.run_page.section import ChosenStep, choose_steps, room_for
from roundoff.runs import CachedRun, EventColumns, Finding, Interned, Severity, replay_path
from tests.run_folders import write_run


def events(step: int) -> EventColumns:
    one = np.ones(1)
    word = Interned.of(["x"])
    return EventColumns(
        step=np.array([step], dtype=np.int32), microbatch=one.astype(np.int16), phase=Interned.of(["forward"]),
        site=word, op=word, nth=one.astype(np.int32), output=Interned.of(["output0"]), order=one.astype(np.int32),
        dtype=Interned.of(["float32"]), shape=word, device=word, num_elements=one, min=one, max=one, mean=one,
        sum_abs=one, l2=one, num_nan=one, num_posinf=one, num_neginf=one, num_zero=one, num_subnormal=one, hash=one,
    )  # fmt: skip


def write(folder: Path, steps: range, *, rank: int = 0, ranks: int = 1) -> None:
    write_run(folder, [events(step) for step in steps], rank=rank, ranks=ranks)


def finding(step: int, rank: int | None = None) -> Finding:
    return Finding(
        rule="overflow", severity=Severity.ERROR, confidence=1, title="t", why="w", fix="f", step=step, rank=rank
    )


def test_every_recorded_step_is_there_in_order(tmp_path: Path):
    write(tmp_path / "run", range(5))
    steps, notes = choose_steps(RunView(run=CachedRun.open(tmp_path / "run"), findings=[finding(3)]))
    assert [step.step for step in steps] == [0, 1, 2, 3, 4]
    assert [step.step for step in steps if step.is_telling] == [3]
    assert list(notes) == []


def test_a_replay_takes_the_place_of_its_step(tmp_path: Path):
    write(tmp_path / "run", range(2))
    write(replay_path(tmp_path / "run", step=1), range(1, 2))
    steps, _ = choose_steps(RunView(run=CachedRun.open(tmp_path / "run"), findings=[]))
    assert [(step.step, step.is_replay, step.is_telling) for step in steps] == [
        (0, False, False),
        (1, True, True),
    ]


def test_of_too_many_steps_the_telling_ones_the_first_and_the_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(room, "MAX_STEPS", 10)
    write(tmp_path / "run", range(100))
    steps, notes = choose_steps(RunView(run=CachedRun.open(tmp_path / "run"), findings=[finding(57)]))
    steps = [step.step for step in steps]
    assert len(steps) == 10
    assert {0, 57, 99} <= set(steps)
    assert list(notes) == [
        "10 of 100 recorded steps can be selected: those that findings mention, and others at even intervals."
    ]


def test_ranks_that_no_finding_names_are_left_out_and_counted(tmp_path: Path):
    for rank in range(4):
        write(tmp_path / "run", range(2), rank=rank, ranks=4)
    steps, notes = choose_steps(RunView(run=CachedRun.open(tmp_path / "run"), findings=[finding(1, rank=2)]))
    assert [(step.step, step.rank) for step in steps] == [(0, 0), (0, 2), (1, 0), (1, 2)]
    assert list(notes) == ["The steps of 2 more ranks are left out, because no finding mentions them."]


def test_telling_steps_get_room_before_others_share_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "MAX_RESULTS", 100)
    monkeypatch.setattr(room, "MAX_RESULTS_OF_STEP", 60)
    write(tmp_path / "run", range(1))
    run = CachedRun.open(tmp_path / "run")

    def step(*, is_telling: bool) -> ChosenStep:
        return ChosenStep(step=0, rank=0, holder=run, is_replay=False, is_telling=is_telling)

    steps = [step(is_telling=False), step(is_telling=True), step(is_telling=False), step(is_telling=False)]
    assert room_for(steps, [500, 500, 5, 500]) == [17, 60, 5, 18]
    assert room_for(steps, [10, 20, 30, 40]) == [10, 20, 30, 40]
