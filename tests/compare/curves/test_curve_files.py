"""Loss curves out of every kind of file, and what is said of files that hold none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from roundoff.compare.curves.curve_files import read_curve
from roundoff.errors import CompareError
from tests.run_folders import losses, write_run


def curve_in(tmp_path: Path, name: str, text: str, **options: str) -> tuple[list[int], list[float]]:
    path = tmp_path / name
    path.write_text(text)
    curve = read_curve(path, **options)
    return list(curve.steps), list(curve.values)


@pytest.mark.parametrize(
    "header",
    [
        "step,loss",
        "Step,Value",
        "global_step,train/loss",
        "iteration,Train Loss",
        "epoch,loss_train",
        "step,lm_loss",
        "Step,latest - loss",
    ],
)
def test_the_column_of_the_loss_is_known_by_its_name(tmp_path: Path, header: str) -> None:
    assert curve_in(tmp_path, "a.csv", f"{header}\n10,2.5\n20,2.25\n") == ([10, 20], [2.5, 2.25])


def test_the_loss_of_an_evaluation_is_not_taken_for_the_loss(tmp_path: Path) -> None:
    text = "step,val_loss,train_loss,loss_scale\n0,9,2.5,65536\n1,9,2.25,65536\n"
    assert curve_in(tmp_path, "a.csv", text) == ([0, 1], [2.5, 2.25])


def test_a_column_can_be_chosen(tmp_path: Path) -> None:
    text = "step,loss,aux\n0,2.5,7\n1,2.25,6\n"
    assert curve_in(tmp_path, "a.csv", text, column="aux") == ([0, 1], [7.0, 6.0])


def test_rows_without_a_loss_are_left_out(tmp_path: Path) -> None:
    text = "step,train_loss,accuracy\n0,2.5,\n0,,0.1\n1,2.25,\n"
    assert curve_in(tmp_path, "a.csv", text) == ([0, 1], [2.5, 2.25])


@pytest.mark.parametrize(("name", "separator"), [("a.tsv", "\t"), ("a.csv", ";"), ("a.csv", ",")])
def test_columns_are_separated_by_comma_semicolon_or_tab(tmp_path: Path, name: str, separator: str) -> None:
    assert curve_in(tmp_path, name, f"step{separator}loss\n3{separator}nan\n")[0] == [3]


def test_a_table_of_bare_numbers_holds_steps_and_losses(tmp_path: Path) -> None:
    assert curve_in(tmp_path, "a.csv", "5,2.5\n6,2.25\n") == ([5, 6], [2.5, 2.25])
    assert curve_in(tmp_path, "a.csv", "2.5\n2.25\n") == ([0, 1], [2.5, 2.25])


def test_inner_objects_of_json_lines_are_columns_too(tmp_path: Path) -> None:
    lines = [json.dumps({"step": step, "train": {"loss": 2.5 - step}}) for step in range(2)]
    assert curve_in(tmp_path, "a.jsonl", "\n".join(lines)) == ([0, 1], [2.5, 1.5])


def test_a_last_line_that_is_cut_off_is_dropped(tmp_path: Path) -> None:
    assert curve_in(tmp_path, "a.jsonl", '{"step": 0, "loss": 2.5}\n{"step": 1, "lo') == ([0], [2.5])


def test_the_metrics_of_a_run_are_a_curve(tmp_path: Path) -> None:
    write_run(tmp_path / "run", losses(2.5, float("inf"), 2.25))
    curve = read_curve(tmp_path / "run" / "metrics-rank0.jsonl")
    assert (curve.steps, curve.values) == ((0, 1, 2), (2.5, float("inf"), 2.25))


def test_events_of_tensorboard_are_read_from_file_and_folder(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "events")) as writer:
        for step in range(20):
            writer.add_scalar("train/loss", 2.5 - step / 8, step * 10)
            writer.add_scalar("val/loss", 9.0, step * 10)
    (file,) = (tmp_path / "events").iterdir()
    for path in (tmp_path / "events", file):
        curve = read_curve(path)
        assert curve.steps == tuple(range(0, 200, 10))
        assert curve.values == tuple(2.5 - step / 8 for step in range(20))
    assert read_curve(file, column="val/loss").values[0] == 9.0


def test_without_tensorboard_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(CompareError, match=r"pip install 'roundoff\[tensorboard\]'"):
        read_curve(tmp_path / "events.out.tfevents.1")


def test_an_event_file_that_holds_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(b"this is not TensorBoard's")
    with pytest.raises(CompareError, match="tfevents"):
        read_curve(tmp_path / "events.out.tfevents.1")


def test_batches_that_begin_anew_with_every_epoch_are_numbered_on(tmp_path: Path) -> None:
    text = "epoch,step,loss\n0,0,4\n0,1,3\n1,0,2\n1,1,1\n"
    assert curve_in(tmp_path, "a.csv", text) == ([0, 1, 2, 3], [4.0, 3.0, 2.0, 1.0])


def test_a_step_that_no_machine_counts_to_is_none(tmp_path: Path) -> None:
    assert curve_in(tmp_path, "a.csv", f"step,loss\n0,4\n{10**30},3\n") == ([0, 1], [4.0, 3.0])


def test_what_a_resumed_training_wrote_last_counts(tmp_path: Path) -> None:
    text = "step,loss\n0,4\n1,3\n2,99\n1,2.5\n2,2\n"
    assert curve_in(tmp_path, "a.csv", text) == ([0, 1, 2], [4.0, 2.5, 2.0])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "step,accuracy\n0,1\n", "its columns are 'step', 'accuracy'"),
        ("a.csv", "step,a_loss,b_loss\n0,1,2\n", "several columns could be the loss: a_loss, b_loss"),
        ("a.csv", "step,loss\n0,high\n", "one of its values is 'high'"),
        ("a.csv", "step,loss\n", "holds no rows"),
        ("a.csv", "", "is empty"),
        ("a.jsonl", '{"loss": 1}\nstep 3\n{"loss": 1}\n', "Line 2"),
        ("a.jsonl", "[1, 2]\n{}\n", "Line 1"),
        ("a.jsonl", '{"loss": [1]}\n', "it has no column of numbers"),
        ("a.jsonl", '{"loss": true}\n', "holds no numbers"),
        ("a.log", "", "is empty"),
        ("a.log", "hello\nthe loss is unknown\n", "one of them is: the loss is unknown"),
    ],
)
def test_of_a_file_without_a_curve_it_is_said_what_is_in_it(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(CompareError, match=said):
        curve_in(tmp_path, name, text)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match=r"There is no '.*a\.csv'"):
        read_curve(tmp_path / "a.csv")
