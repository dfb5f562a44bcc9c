"""A block that records: what it leaves on disk, and that its failures never become those of the training."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.errors import RunFolderError
from roundoff.record import recording
from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import StepClock
from roundoff.record.ops.recorder import OpRecorder
from roundoff.record.ops.rows import StepRows
from roundoff.record.session import Recording, StepWriter
from roundoff.runs import Run
from roundoff.torch_private import DispatchMode

X, Y = torch.randn(4, 3), torch.randn(4, 2)


def train(num_steps: int = 3, *, between: Callable[[int], None] = lambda number: None) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(num_steps):
        optimizer.zero_grad()
        F.mse_loss(model(X), Y).backward()
        optimizer.step()
        between(number)
    return [p.detach().clone() for p in model.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# -- what is left on disk ----------------------------------------------------------------------------------------------


def test_the_run_says_what_was_requested(tmp_path):
    with recording(
        to=tmp_path / "run", level="tensors", inputs=True, seed=7, command=("python", "a.py"), settings={"k": 1}
    ):
        train(1)
    info = Run.open(tmp_path / "run").info
    assert (info.command, info.seed, info.status) == (("python", "a.py"), 7, "finished")
    requested = {"level": "tensors", "inputs": True, "histograms": False, "reference": None, "stacks": False}
    assert info.settings == {**requested, "k": 1}


def test_the_folder_is_named_by_text_or_path_and_made_with_its_parents(tmp_path):
    with recording(to=f"{tmp_path}/deep/down/run") as session:
        train(1)
    assert session is not None
    assert session.folder == tmp_path / "deep/down/run"
    assert (session.num_steps, session.num_recorded) == (1, 1)
    assert session.num_events == Run.open(session.folder).events().num_rows


def test_a_folder_that_holds_a_run_is_an_error_at_once(tmp_path):
    with recording(to=tmp_path / "run"):
        train(1)
    with pytest.raises(RunFolderError, match="already holds a run"), recording(to=tmp_path / "run"):
        raise AssertionError("the block must not run")


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError), recording(to=tmp_path / "file/run"):
        raise AssertionError("the block must not run")


def test_a_step_is_on_disk_when_the_next_one_begins(tmp_path):
    seen = []

    def look(number: int) -> None:
        seen.append(Run.open(tmp_path / "run").steps)

    with recording(to=tmp_path / "run"):
        train(3, between=look)
    assert seen == [[], [0], [0, 1]]


def test_a_run_that_is_killed_can_be_read(tmp_path):
    script = f"""
import os, torch
from torch import nn
from roundoff.record import recording
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with recording(to={str(tmp_path / "run")!r}, level="tensors"):
    for number in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        if number == 3:
            os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=300).returncode == -9
    run = Run.open(tmp_path / "run")
    assert (run.steps, run.info.status) == ([0, 1, 2], "running")
    assert [step for _, step in run.tensor_steps] == [0, 1, 2]


def test_loose_ops_without_any_training_are_recorded_as_one_step(tmp_path):
    with recording(to=tmp_path / "run"):
        torch.ones(3) @ torch.ones(3)
    assert [e.op for e in Run.open(tmp_path / "run").iter_events()] == ["aten.ones", "aten.ones", "aten.dot"]


def test_importing_the_room_leaves_torch_as_it_is():
    script = (
        "import torch; before = torch.save, torch.autograd._engine_run_backward; import roundoff.record; "
        "assert before == (torch.save, torch.autograd._engine_run_backward)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


# -- our failures ------------------------------------------------------------------------------------------------------


def recorded_with_one_complaint(training: Callable[[], list[Tensor]], folder: Path, **options: Any) -> list[Tensor]:
    with contextlib.redirect_stderr(io.StringIO()) as stderr, recording(to=folder, **options):
        weights = training()
    (line,) = stderr.getvalue().splitlines()
    assert line.startswith(f"roundoff: stopped recording to '{folder}'")
    assert "; the training goes on. Why: " in line
    return weights


LEVELS = pytest.mark.parametrize("level", ["summary", "tensors"])


@LEVELS
@pytest.mark.parametrize("at_step", [0, 1, 2])
def test_the_folder_may_be_deleted_in_the_middle(tmp_path, level, at_step):
    def delete(number: int) -> None:
        if number == at_step:
            shutil.rmtree(tmp_path / "run")

    weights = recorded_with_one_complaint(lambda: train(between=delete), tmp_path / "run", level=level)
    assert same(weights, train())


@LEVELS
def test_the_disk_may_fail_in_the_middle(tmp_path, level):
    """A file is in the place of a folder: permissions would not stop root from writing."""

    def spoil(number: int) -> None:
        if number == 1:
            for name in ("events", "tensors"):
                shutil.rmtree(tmp_path / "run" / name, ignore_errors=True)
                (tmp_path / "run" / name).write_text("")

    weights = recorded_with_one_complaint(lambda: train(between=spoil), tmp_path / "run", level=level)
    assert same(weights, train())
    assert "Recording stopped" in json.loads((tmp_path / "run/run.json").read_text())["notes"][-1]


def fails_at_call(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int) -> None:
    original = getattr(owner, name)
    calls = 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise KeyError("a bug of ours")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)


FAILING = [
    (OpRecorder, "_after", 1), (OpRecorder, "_after", 40), (OpRecorder, "_where", 5),
    (OpRecorder, "_where_backward", 3),
    (OpRecorder, "new_step", 1), (OpRecorder, "new_microbatch", 2), (OpRecorder, "begin_optimizer", 1),
    (OpRecorder, "add_named", 2), (StepRows, "add", 1), (StepRows, "add", 60),
    (StepRows, "to_columns", 1), (StepRows, "to_columns", 3),
    (Recording, "forward_enter", 2), (Recording, "forward_leave", 2), (Recording, "backward_enter", 1),
    (Recording, "backward_leave", 2), (Recording, "step_enter", 1), (Recording, "step_leave", 2),
    (Recording, "called", 1), (Recording, "step_closed", 1), (Recording, "step_closed", 3),
    (Recording, "_find_complaints", 1), (StepWriter, "write_step", 1), (StepWriter, "write_step", 3),
    (StepClock, "forward", 2), (StepClock, "backward_leave", 1), (Sites, "of_module", 3), (Sites, "refresh", 2),
]  # fmt: skip


def left_behind() -> Any:
    from torch.nn.modules import module
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return (
        list(_get_current_dispatch_mode_stack()), len(module._global_forward_hooks), torch.save,
        torch.autograd._engine_run_backward,  # type: ignore[attr-defined]
    )  # fmt: skip


@pytest.mark.parametrize(("owner", "name", "number"), FAILING, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_bug_of_ours_is_one_warning_and_the_training_is_the_same(tmp_path, monkeypatch, owner, name, number):
    expected, before = train(), left_behind()
    fails_at_call(monkeypatch, owner, name, number)
    weights = recorded_with_one_complaint(train, tmp_path / "run")
    assert same(weights, expected)
    assert left_behind() == before
    run = Run.open(tmp_path / "run")
    assert any("KeyError: 'a bug of ours'" in note for note in run.info.notes)
    assert run.info.status == "finished"


@pytest.mark.parametrize(("owner", "name", "number"), FAILING, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_strict_recording_raises_instead(tmp_path, monkeypatch, owner, name, number):
    before = left_behind()
    fails_at_call(monkeypatch, owner, name, number)
    with pytest.raises(KeyError, match="a bug of ours"), recording(to=tmp_path / "run", strict=True):
        train()
    assert left_behind() == before


@LEVELS
@pytest.mark.parametrize("at_step", [0, 1, 2])
def test_a_strict_recording_raises_when_the_folder_is_gone(tmp_path, level, at_step):
    def delete(number: int) -> None:
        if number == at_step:
            shutil.rmtree(tmp_path / "run")

    before = left_behind()
    with (
        pytest.raises(RunFolderError, match="cannot be written"),
        recording(to=tmp_path / "run", strict=True, level=level),
    ):
        train(between=delete)
    assert left_behind() == before


def test_a_bug_of_ours_in_a_loop_of_plain_functions_is_one_warning(tmp_path, monkeypatch):
    fails_at_call(monkeypatch, Recording, "function_forward", 1)

    def training() -> list[Tensor]:
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            weight.grad = None
            weight.square().sum().backward()
            optimizer.step()
        return [weight.detach()]

    before = left_behind()
    assert same(recorded_with_one_complaint(training, tmp_path / "run"), training())
    assert left_behind() == before


def test_the_failure_of_a_recording_does_not_hide_that_of_the_training(tmp_path, monkeypatch):
    fails_at_call(monkeypatch, StepWriter, "write_step", 1)

    def training() -> None:
        train(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), recording(to=tmp_path / "run"):
        training()


def test_a_recording_that_stopped_costs_nothing_any_more(tmp_path, monkeypatch):
    fails_at_call(monkeypatch, OpRecorder, "_after", 5)
    rows = []

    def count(number: int) -> None:
        if number == 1:
            monkeypatch.setattr(StepRows, "add", lambda *args: rows.append(args))

    recorded_with_one_complaint(lambda: train(between=count), tmp_path / "run")
    assert rows == []


@pytest.mark.parametrize("action", ["error", "ignore"])
def test_the_users_filters_for_warnings_have_no_say(tmp_path, monkeypatch, action):
    fails_at_call(monkeypatch, Recording, "step_enter", 1)

    def training() -> list[Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            return train()

    for weight, own in zip(recorded_with_one_complaint(training, tmp_path / "run"), train(), strict=True):
        assert torch.equal(weight, own)


def test_the_recorder_is_a_mode_like_any_other():
    assert issubclass(OpRecorder, DispatchMode)
