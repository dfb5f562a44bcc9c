"""Anomalies, replay info and origins, written and read back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.errors import RunFolderError
from roundoff.runs import Anomaly, ExceptionDetail, Origin, ReplayInfo, Run, RunInfo, RunWriter, SpikeDetail
from roundoff.runs.records.info import sketches_line_up

INFO = RunInfo(
    name="mine",
    command=("train.py", "--lr", "caf\udce9"),
    recipe="O2",
    seed=3,
    packages={"torch": "2.13.0"},
    hardware={"cpus": 2, "devices": ["cpu"]},
    git_commit="abc",
    ranks=2,
    started="2026-01-01T00:00:00+00:00",
    notes=("a note",),
    launch="torchrun",
    settings={"budget": float("inf")},
)


def create(folder: Path, info: RunInfo = INFO) -> Path:
    RunWriter.create(folder, info, strict=True)
    return folder


def change(folder: Path, **changes: object) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_a_run_was_comes_back(tmp_path: Path):
    assert Run.open(create(tmp_path / "a")).info == INFO


def test_a_nameless_run_is_called_like_its_folder(tmp_path: Path):
    info = Run.open(create(tmp_path / "train-7", RunInfo())).info
    assert info.name == "train-7"
    assert info.started


def test_run_json_has_the_documented_fields(tmp_path: Path):
    written = json.loads((create(tmp_path / "a") / "run.json").read_text())
    assert list(written) == [
        "version", "readable_by", "name", "command", "recipe", "seed", "packages", "hardware", "git_commit", "ranks",
        "started", "finished", "status", "notes", "launch", "settings", "environment",
    ]  # fmt: skip
    assert (written["version"], written["readable_by"], written["status"]) == (2, 1, "running")


def test_a_folder_for_newer_readers_is_refused(tmp_path: Path):
    change(create(tmp_path / "a"), readable_by=3, version=9)
    with pytest.raises(RunFolderError) as caught:
        Run.open(tmp_path / "a")
    assert str(caught.value) == (
        f"'{tmp_path}/a/run.json' was written by a newer roundoff.\n"
        "  why: its folder needs a reader of version 3, and this one reads up to version 2.\n"
        "  fix: pip install --upgrade roundoff"
    )


def test_a_newer_folder_that_old_readers_understand_is_read(tmp_path: Path):
    change(create(tmp_path / "a"), version=9, mood="good")
    assert Run.open(tmp_path / "a").info == replace(INFO, version=9)


def test_sketches_of_the_first_version_line_up_with_their_like_only():
    first, second, third = (replace(INFO, version=version) for version in (1, 2, 3))
    assert sketches_line_up(first, first)
    assert sketches_line_up(second, third)
    assert not sketches_line_up(first, second)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"readable_by": "1"}, "it has no number 'readable_by'"),
        ({"ranks": "two"}, "'ranks' holds 'two'"),
        ({"status": "sleeping"}, "'status' holds 'sleeping'"),
        ({"command": "train.py"}, "'command' holds 'train.py'"),
        ({"packages": {"torch": 2}}, "'packages' holds 2"),
    ],
)
def test_a_field_that_holds_something_else_is_named(tmp_path: Path, changes: dict[str, object], why: str):
    change(create(tmp_path / "a"), **changes)
    with pytest.raises(RunFolderError, match=rf"run\.json' cannot be read\.\n  why: {why}"):
        Run.open(tmp_path / "a")


def test_a_missing_folder_a_file_and_another_folder_have_different_errors(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    for name, message in (
        ("missing", "missing' does not exist"),
        ("file", "file' is a file, not a run folder"),
        ("other", r"other' is not a run folder\.\n  why: it has no run\.json"),
    ):
        with pytest.raises(RunFolderError, match=message):
            Run.open(str(tmp_path / name))


def test_texts_that_stand_for_numbers_elsewhere_stay_texts(tmp_path: Path):
    info = replace(INFO, name="nan", command=("train.py", "--clip", "inf"), notes=("-inf",))
    with RunWriter.create(tmp_path / "nan", info):
        pass
    read = Run.open(tmp_path / "nan").info
    assert (read.name, read.command, read.notes) == ("nan", ("train.py", "--clip", "inf"), ("-inf",))


def test_anomalies_come_back_with_their_rank(tmp_path: Path):
    anomaly = Anomaly(step=3, kind="loss", phase="forward", value=float("nan"))
    with RunWriter.create(tmp_path / "a", RunInfo(), rank=1) as writer:
        writer.write(anomaly)
    with RunWriter.create(tmp_path / "a", RunInfo(), rank=0):
        pass
    (found,) = Run.open(tmp_path / "a").anomalies()
    assert found[0] == 1
    assert (found[1].step, found[1].kind, str(found[1].value)) == (3, "loss", "nan")


def test_the_detail_of_an_anomaly_is_of_the_class_of_its_kind(tmp_path: Path):
    spike = Anomaly(step=3, kind="spike", value=8.0, detail=SpikeDetail(median=1.0, limit=2.0))
    raised = Anomaly(step=4, kind="exception", name="ValueError", detail=ExceptionDetail(message="no", site="head"))
    with RunWriter.create(tmp_path / "a", RunInfo()) as writer:
        writer.write(spike)
        writer.write(raised)
    assert Run.open(tmp_path / "a").anomalies() == [(0, spike), (0, raised)]
    assert spike.detail_as(ExceptionDetail) == ExceptionDetail()


def test_replay_info_and_origin_come_back_as_they_were(tmp_path: Path):
    info = ReplayInfo(step=3, snapshot_step=1, is_identical=True, covers=("forward",))
    origin = Origin(step=3, phase="forward", site="head", op="aten.log#0", overload="aten::log.default",
                    arguments={"self": {"tensor": "self"}}, is_finite_in_fp64=False, bad_index=(0, 2))  # fmt: skip
    with RunWriter.create(tmp_path / "a", RunInfo()) as writer:
        writer.write(info)
        writer.write(origin)
    run = Run.open(tmp_path / "a")
    assert run.replay_info() == info
    assert run.origin() == origin
    assert run.replay_info(rank=1) is None


def test_a_broken_origin_is_named(tmp_path: Path):
    with RunWriter.create(tmp_path / "a", RunInfo()):
        pass
    (tmp_path / "a" / "origin-rank0.json").write_text('{"step": 1}')
    with pytest.raises(RunFolderError, match=r"origin-rank0\.json"):
        Run.open(tmp_path / "a").origin()
