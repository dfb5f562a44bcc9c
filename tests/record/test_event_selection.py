"""What to record: a filter that matches nothing is always reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from roundoff.errors import RecordError
from roundoff.record import recording
from roundoff.record.event_selection import EventFilter, EventSelection, check_sites, parse_steps
from roundoff.runs import Run

X = torch.randn(4, 3)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))


def train(model: nn.Module, num_steps: int = 2) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("0", [0]),
        ("0-3", [0, 1, 2, 3]),
        ("7", [7]),
        ("0-2,7", [0, 1, 2, 7]),
        (" 1 , 3 - 4".replace(" - ", "-"), [1, 3, 4]),
    ],
)
def test_reads_steps_with_both_ends(text, steps):
    assert sorted(parse_steps(text)) == steps


def test_reads_all_steps():
    assert parse_steps("all") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a list of steps.\n  why: '' is not a number.\n  fix: write 0-3 or 0-3,10 or all."),
        ("a", "'a' is not a list of steps.\n  why: 'a' is not a number.\n  fix: write 0-3 or 0-3,10 or all."),
        ("-1", "'-1' is not a list of steps.\n  why: '-1' is not a number.\n  fix: write 0-3 or 0-3,10 or all."),
        ("1,,2", "'1,,2' is not a list of steps.\n  why: '' is not a number.\n  fix: write 0-3 or 0-3,10 or all."),
        ("3-1", "'3-1' selects no step.\n  why: it ends before it begins.\n  fix: write 0-3."),
        ("0,3-1", "'3-1' selects no step.\n  why: it ends before it begins.\n  fix: write 0-3."),
    ],
)
def test_says_what_is_wrong_with_a_list_of_steps(text, message):
    with pytest.raises(RecordError) as error:
        parse_steps(text)
    assert str(error.value) == message


@pytest.mark.parametrize("steps", [[], range(0), [-1], -1, [2, -3], range(-2, 2)])
def test_refuses_steps_that_select_nothing(steps):
    with pytest.raises(RecordError, match="select nothing"):
        EventSelection.of(steps=steps)


def test_a_range_without_end_costs_nothing():
    selection = EventSelection.of(steps=parse_steps("0-99999999999"))
    assert selection.wants_step(10**9)
    assert selection.has_steps_after(10**9)
    assert not selection.has_steps_after(10**11)


def test_a_list_with_a_range_without_end_costs_nothing():
    with pytest.raises(RecordError, match="'5-99999999999' is more steps than a list can hold"):
        parse_steps("0,5-99999999999")


@pytest.mark.parametrize("name", ["sites", "ops", "phases"])
def test_refuses_an_empty_selection(name):
    with pytest.raises(RecordError, match=r"An empty selection records nothing\."):
        EventSelection.of(**{name: []})


def test_names_the_phases_when_one_does_not_exist():
    with pytest.raises(RecordError) as error:
        EventSelection.of(phases="training")
    assert str(error.value) == (
        "There is no phase 'training'.\n"
        "  why: the phases are forward, backward, optimizer, eval.\n"
        "  fix: use one of them."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "everything"}, "There is no level 'everything'.\n  why: the levels are summary, tensors."),
        ({"reference": "fp128"}, "There is no reference 'fp128'.\n  why: the references are fp64, cpu."),
        ({"phases": ["forward", "sideways"]}, "There is no phase 'sideways'."),
        ({"steps": []}, r"The steps \[\] select nothing."),
    ],
)
def test_what_does_not_exist_is_an_error_at_once_and_leaves_no_folder(tmp_path, options, message):
    with pytest.raises(RecordError, match=message), recording(to=tmp_path / "run", **options):
        raise AssertionError("the block must not run")
    assert not (tmp_path / "run").exists()


def test_a_site_that_a_given_model_does_not_have_is_an_error_at_once(tmp_path, model):
    with pytest.raises(RecordError) as error, recording(model, to=tmp_path / "run", sites="blocks.*"):
        raise AssertionError("the block must not run")
    assert str(error.value) == (
        "No site matches 'blocks.*'.\n"
        "  why: the model's sites are 0, 1, 2, <loop>, <model>.\n"
        "  fix: use one of them, or a pattern such as 'blocks.*'."
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("pattern", ["CrossEntropyLoss:", "CrossEntropyLoss:*", "*.<ReLU>", "<Tanh>"])
def test_a_site_that_may_still_come_is_no_error_at_once(pattern):
    check_sites([pattern], ["<loop>", "<model>", "0"])


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def complain(training: Any, folder: Path, **options: Any) -> str:
        with recording(to=folder, **options):
            training()
        (line,) = capsys.readouterr().err.splitlines()
        assert Run.open(folder).info.notes
        return line

    return complain


def test_a_site_that_never_came_is_reported_at_the_end(tmp_path, model, complaint):
    assert complaint(lambda: train(model), tmp_path / "run", sites="blocks.*") == (
        f"roundoff: recorded 2 steps to '{tmp_path}/run', but "
        "the site pattern 'blocks.*' matched nothing; there were 0, 1, 2, <loop>, <model>."
    )


def test_an_op_that_never_came_is_reported_at_the_end(tmp_path, model, complaint):
    text = complaint(lambda: train(model), tmp_path / "run", ops=["softmax", "addmm"])
    assert "the op pattern 'softmax' matched nothing; there were aten.add_, aten.addmm, " in text
    assert "'addmm'" not in text


def test_a_phase_that_never_came_is_reported_at_the_end(tmp_path, model, complaint):
    assert complaint(lambda: train(model), tmp_path / "run", phases=["forward", "eval"]) == (
        f"roundoff: recorded 2 steps to '{tmp_path}/run', but "
        "the phase 'eval' never came; there were backward, forward, optimizer."
    )


def test_filters_that_match_but_not_together_are_reported_at_the_end(tmp_path, model, complaint):
    assert complaint(lambda: train(model), tmp_path / "run", sites="1", ops="addmm") == (
        f"roundoff: recorded 2 steps to '{tmp_path}/run', but "
        "no event is of the chosen sites, ops and phases together, so nothing was recorded."
    )


def test_a_step_that_was_never_reached_is_reported_at_the_end(tmp_path, model, complaint):
    assert complaint(lambda: train(model, 3), tmp_path / "a", steps=[1, 7]) == (
        f"roundoff: recorded 1 step to '{tmp_path}/a', but step 7 was never reached: the loop took 3 steps."
    )
    assert complaint(lambda: train(model, 1), tmp_path / "b", steps=range(3, 10**12)) == (
        f"roundoff: recorded 0 steps to '{tmp_path}/b', but steps from 3 on were never reached: the loop took 1 step."
    )


def test_a_block_without_training_is_reported_at_the_end(tmp_path, complaint):
    assert complaint(lambda: None, tmp_path / "run") == (
        f"roundoff: recorded 0 steps to '{tmp_path}/run', but no training step was seen, so nothing was recorded."
    )


def test_nothing_is_said_when_everything_came(tmp_path, model):
    with recording(to=tmp_path / "run", steps=range(2), sites=["0", "2"], ops=["*mm"], phases=["forward", "backward"]):
        train(model)
    assert Run.open(tmp_path / "run").info.notes == ()


def test_complaints_do_not_hide_the_exception_of_the_training(tmp_path):
    with pytest.raises(ZeroDivisionError), recording(to=tmp_path / "run", steps=[5]):
        raise ZeroDivisionError
    assert Run.open(tmp_path / "run").info.status == "failed"


def test_only_what_is_chosen_is_recorded(record, model):
    run = record(lambda: train(model), sites=["0", "<loop>"], ops="*mm", phases="backward")
    assert {(e.phase, e.site, e.op) for e in run.iter_events()} == {("backward", "0", "aten.mm")}


def test_a_filter_leaves_the_numbers_of_calls_as_they_are(record, model):
    everything = record(lambda: train(model))
    chosen = record(lambda: train(model), ops=["mm", "addmm"])
    keys = {e.key for e in everything.iter_events(op="aten.mm")} | {
        e.key for e in everything.iter_events(op="aten.addmm")
    }
    assert {e.key for e in chosen.iter_events()} == keys


@pytest.mark.parametrize(
    ("pattern", "op", "matches"),
    [
        ("addmm", "aten.addmm", True),
        ("aten.addmm", "aten.addmm", True),
        ("*mm", "aten.bmm", True),
        ("mm", "aten.addmm", False),
        ("aten.*", "c10d.allreduce_", False),
        ("gradient", "gradient", True),
    ],
)
def test_ops_match_with_and_without_their_namespace(pattern, op, matches):
    assert EventFilter(EventSelection.of(ops=pattern)).wants("forward", "<loop>", op) is matches


def test_sites_match_as_a_shell_would():
    chosen = EventFilter(EventSelection.of(sites=["blocks.*", "head"]))
    assert chosen.wants("forward", "blocks.0.mlp", "aten.mm")
    assert chosen.wants("forward", "head", "aten.mm")
    assert not chosen.wants("forward", "blocks", "aten.mm")
    assert not chosen.wants("forward", "head2", "aten.mm")


def test_long_lists_of_names_are_shortened():
    chosen = EventFilter(EventSelection.of(sites="nowhere"))
    for number in range(20):
        chosen.wants("forward", f"layer{number:02}", "aten.mm")
    (text,) = chosen.complaints()
    assert text.endswith("layer10, layer11, and 8 more")


def test_enabled_false_does_nothing_at_all(tmp_path, model):
    with recording(to=tmp_path / "run", enabled=False, level="nonsense") as session:
        train(model)
    assert session is None
    assert list(tmp_path.iterdir()) == []
