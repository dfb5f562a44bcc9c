import json
from pathlib import Path

import pytest

from roundoff.errors import RunFolderError, SweepError
from roundoff.experiments.sweep.definition import Sweep, read_sweep
from roundoff.experiments.sweep.sweep_folder import SweepFolder, read_losses, read_sweep_folder, sweep_request
from roundoff.experiments.sweep.sweep_rows import SweepRow, append_row


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    (tmp_path / "a.toml").write_text('description = "Two recipes."\n[axes]\nrecipe = ["fp32", "O2"]')
    return read_sweep(tmp_path / "a.toml")


@pytest.fixture
def folder(tmp_path: Path, sweep: Sweep) -> SweepFolder:
    (tmp_path / "s").mkdir()
    written = SweepFolder(path=tmp_path / "s")
    written.write_request(sweep_request(sweep))
    return written


def test_a_sweep_that_has_only_begun_is_read(folder: SweepFolder):
    kept = read_sweep_folder(folder.path)
    assert (kept.name, kept.description, kept.axes) == ("a", "Two recipes.", ("recipe",))
    assert [(dict(each.labels), each.row) for each in kept.planned] == [
        ({"recipe": "fp32"}, None),
        ({"recipe": "O2"}, None),
    ]
    assert kept.rows == []


def test_rows_come_in_the_order_of_the_plan_under_its_labels(folder: SweepFolder, sweep: Sweep):
    for number, training in enumerate(reversed(sweep.trainings)):
        append_row(
            folder.rows, SweepRow(key=training.key, labels={"recipe": "an old label"}, settings={}, steps=number)
        )
    assert [(row.name, row.steps) for row in read_sweep_folder(folder.path).rows] == [("fp32", 1), ("O2", 0)]


def test_rows_that_are_no_longer_requested_are_left_out(folder: SweepFolder):
    append_row(folder.rows, SweepRow(key="gone", labels={"recipe": "half"}, settings={}))
    assert read_sweep_folder(folder.path).rows == []


def test_a_folder_without_a_sweep_is_an_error(tmp_path: Path):
    with pytest.raises(SweepError) as raised:
        read_sweep_folder(tmp_path)
    assert str(raised.value) == (
        f"'{tmp_path}' holds no sweep.\n"
        "  why: there is no sweep.json in it.\n"
        "  fix: name a folder that roundoff sweep wrote: runs/NAME"
    )
    with pytest.raises(SweepError, match="there is no such folder"):
        read_sweep_folder(tmp_path / "nowhere")


@pytest.mark.parametrize("row", [{}, {"key": "k"}, {"key": "../k", "labels": {}}, {"key": 1, "labels": {}}])
def test_a_plan_that_cannot_be_is_an_error(folder: SweepFolder, row: dict[str, object]):
    folder.request.write_text(json.dumps({"name": "a", "description": "", "axes": [], "rows": [row]}))
    with pytest.raises(SweepError, match=r"sweep\.json' cannot be read"):
        read_sweep_folder(folder.path)


def test_labels_that_look_like_numbers_stay_labels(folder: SweepFolder):
    rows = [{"key": "k", "labels": {"clip": "inf"}}]
    folder.request.write_text(json.dumps({"name": "nan", "description": "", "axes": ["clip"], "rows": rows}))
    kept = read_sweep_folder(folder.path)
    assert (kept.name, kept.planned[0].labels["clip"]) == ("nan", "inf")


def test_a_plan_that_is_not_json_is_an_error(folder: SweepFolder):
    folder.request.write_text("{")
    with pytest.raises(RunFolderError, match="it is not JSON"):
        read_sweep_folder(folder.path)


def test_a_training_that_has_not_begun_has_no_losses(folder: SweepFolder):
    assert read_losses(folder, "k") == []


def test_losses_are_read_up_to_where_a_killed_training_wrote(folder: SweepFolder):
    folder.metrics("k").parent.mkdir()
    folder.metrics("k").write_text('{"step": 0, "loss": 2.5}\n{"step": 1, "loss": "inf"}\n{"step": 2, "lo')
    assert read_losses(folder, "k") == [2.5, float("inf")]
