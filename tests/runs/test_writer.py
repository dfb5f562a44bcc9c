import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from roundoff.errors import RunFolderError
from roundoff.runs import Call, Metrics, OverfitProbe, Run, RunInfo, RunWriter


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def write_something(writer: RunWriter, make_events, step: int = 0) -> None:
    writer.write_events(make_events(step))
    writer.write(Metrics(step=step, loss=1.0))
    writer.write(Call(step=step, call="step"))
    writer.flush()


@pytest.fixture
def writer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> RunWriter:
    return RunWriter.create(tmp_path / "run", RunInfo())


def test_a_run_leaves_the_documented_files(tmp_path: Path, make_events, parameters, hashes):
    with RunWriter.create(tmp_path / "run", RunInfo(), strict=True) as writer:
        write_something(writer, make_events)
        write_something(writer, make_events, step=1)
        writer.write_parameters(parameters)
        writer.write_hashes(hashes)
        writer.write(OverfitProbe(step=1, losses=(float("nan"), 1.0)))
        with writer.tensors(12) as tensors:
            tensors.add("forward/0/fc/aten.mm#0:output0", np.zeros(3, np.float32), dtype="F32", shape=(3,))
        with writer.batch(0) as batch:
            batch.add("input0", np.zeros(3, np.float32), dtype="F32", shape=(3,))
    assert tree(tmp_path / "run") == [
        "batches/rank0-batch-00000.safetensors",
        "calls-rank0.jsonl",
        "events/rank0-part-00000.parquet",
        "events/rank0-part-00001.parquet",
        "hashes/rank0-part-00000.parquet",
        "metrics-rank0.jsonl",
        "parameters/rank0-part-00000.parquet",
        "probes.jsonl",
        "run.json",
        "tensors/rank0-step12.safetensors",
    ]


def test_other_ranks_write_only_their_own_files(tmp_path: Path, make_events):
    with RunWriter.create(tmp_path / "run", RunInfo(), rank=1, strict=True) as writer:
        write_something(writer, make_events)
        writer.note("only rank 0 writes this")
    assert tree(tmp_path / "run") == ["calls-rank1.jsonl", "events/rank1-part-00000.parquet", "metrics-rank1.jsonl"]


def test_nothing_is_written_before_a_flush(writer: RunWriter, make_events):
    writer.write_events(make_events(0))
    writer.write(Metrics(step=0))
    assert tree(writer.folder) == ["run.json"]
    assert Run.open(writer.folder).metrics() == []


def test_the_end_of_a_run_is_noted(tmp_path: Path):
    with RunWriter.create(tmp_path / "a", RunInfo(), strict=True) as writer:
        assert (Run.open(tmp_path / "a").info.status, Run.open(tmp_path / "a").info.finished) == ("running", None)
        writer.note("the data loader was wrapped")
    info = Run.open(tmp_path / "a").info
    assert info.status == "finished"
    assert info.finished >= info.started
    assert info.notes == ("the data loader was wrapped",)


def test_a_block_that_fails_leaves_a_failed_run_with_everything_in_it(tmp_path: Path):
    def fail() -> None:
        with RunWriter.create(tmp_path / "a", RunInfo()) as writer:
            writer.write(Metrics(step=0, loss=2.0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    run = Run.open(tmp_path / "a")
    assert run.info.status == "failed"
    assert run.metrics() == [Metrics(step=0, loss=2.0)]


def test_closing_twice_keeps_the_first_status(writer: RunWriter):
    writer.close(status="failed")
    writer.close()
    assert Run.open(writer.folder).info.status == "failed"


def test_a_run_is_never_written_over(tmp_path: Path, writer: RunWriter):
    with pytest.raises(RunFolderError) as caught:
        RunWriter.create(tmp_path / "run", RunInfo())
    assert str(caught.value) == (
        f"'{tmp_path}/run' already holds a run.\n"
        "  why: a run is never written over.\n"
        "  fix: name another folder, or remove this one."
    )


def test_ranks_share_a_folder_in_any_order_but_not_a_rank(tmp_path: Path, make_events):
    for rank in (1, 0, 2):
        write_something(RunWriter.create(tmp_path / "run", RunInfo(), rank=rank, strict=True), make_events)
    with pytest.raises(RunFolderError, match="already holds a run"):
        RunWriter.create(tmp_path / "run", RunInfo(), rank=2)
    assert Run.open(tmp_path / "run").ranks == [0, 1, 2]


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_an_error_at_the_start(tmp_path: Path, name: str):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"No run can be written to '.*'\.\n  why: .*file.*: "):
        RunWriter.create(tmp_path / name, RunInfo())


FULL = {
    "lines": "metrics-rank0.jsonl",
    "events": "events/rank0-part-00000.parquet",
    "info": "run.json",
}


@pytest.mark.parametrize("full", FULL.values(), ids=FULL.keys())
def test_a_full_disk_stops_the_recording_with_one_line(writer: RunWriter, make_events, full: str, fill_disk, capsys):
    fill_disk(Path(full).name)

    def train() -> None:
        for step in range(3):
            write_something(writer, make_events, step=step)
            with writer.tensors(step) as tensors:
                tensors.add("a", np.zeros(1), dtype="F64", shape=(1,))
        writer.close()

    train()
    file = writer.folder / full
    assert capsys.readouterr().err == (
        f"roundoff: stopped recording to '{writer.folder}'; the training goes on. "
        f"Why: {file}: {os.strerror(errno.ENOSPC)}.\n"
    )
    assert writer.stopped == f"{file}: No space left on device."


def test_a_full_disk_in_the_middle_of_a_tensor_file_stops_the_recording(
    writer: RunWriter, make_events, fill_disk, capsys
):
    fill_disk("rank0-step0.safetensors")

    def keep_tensors() -> None:
        with writer.tensors(0) as tensors:
            for i in range(5):
                tensors.add(f"t{i}", np.zeros(2**20, np.float32), dtype="F32", shape=(2**20,))

    keep_tensors()
    assert "rank0-step0.safetensors: No space left" in capsys.readouterr().err
    assert list((writer.folder / "tensors").iterdir()) == []
    write_something(writer, make_events)
    assert Run.open(writer.folder).metrics() == []


def test_a_tensor_file_open_while_the_recording_stops_leaves_nothing(writer: RunWriter, fill_disk):
    fill_disk("metrics-rank0.jsonl")
    tensors = writer.tensors(0)
    tensors.add("a", np.zeros(3 * 2**20, np.float32), dtype="F32", shape=(3 * 2**20,))
    assert len(list((writer.folder / "tensors").iterdir())) == 1
    writer.write(Metrics(step=0))
    writer.flush()
    assert writer.stopped is not None
    tensors.add("b", np.zeros(1, np.float32), dtype="F32", shape=(1,))
    tensors.close()
    assert list((writer.folder / "tensors").iterdir()) == []


def test_what_was_flushed_before_the_disk_was_full_stays_readable(writer: RunWriter, make_events, fill_disk):
    write_something(writer, make_events, step=0)
    fill_disk("rank0-part-00001.parquet")
    write_something(writer, make_events, step=1)
    run = Run.open(writer.folder)
    assert run.steps == [0]
    assert run.info.notes == (
        f"Recording stopped: {writer.folder}/events/rank0-part-00001.parquet: No space left on device.",
    )


@pytest.mark.parametrize("replacement", ["nothing", "a file"])
def test_a_folder_that_disappears_stops_the_recording(writer: RunWriter, make_events, replacement: str, capsys):
    write_something(writer, make_events)
    shutil.rmtree(writer.folder)
    if replacement == "a file":
        writer.folder.touch()
    write_something(writer, make_events, step=1)
    writer.close()
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not writer.folder.is_dir()


def test_lines_alone_notice_that_the_folder_disappeared(writer: RunWriter, capsys):
    shutil.rmtree(writer.folder)
    writer.write(Metrics(step=0))
    writer.flush()
    assert "metrics-rank0.jsonl: No such file or directory" in capsys.readouterr().err


def test_a_mistake_of_ours_stops_the_recording_too(writer: RunWriter, make_events, capsys):
    writer.write_events(make_events(0, max=np.zeros(99)))
    assert " Why: " in capsys.readouterr().err
    write_something(writer, make_events)
    assert tree(writer.folder) == ["gaps-rank0.jsonl", "run.json"]


def test_strict_raises_instead(tmp_path: Path, make_events):
    writer = RunWriter.create(tmp_path / "run", RunInfo(), strict=True)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(RunFolderError) as caught:
        write_something(writer, make_events)
    assert str(caught.value) == (
        f"The run in '{tmp_path}/run' cannot be written.\n  why: {tmp_path}/run/events: No such file or directory."
    )


def test_a_forked_process_writes_nothing(writer: RunWriter, make_events):
    writer.write(Metrics(step=0))
    child = os.fork()
    if child == 0:
        writer.write(Metrics(step=1))
        writer.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert tree(writer.folder) == ["run.json"]
    assert Run.open(writer.folder).info.status == "running"
    writer.close()
    assert [metrics.step for metrics in Run.open(writer.folder).metrics()] == [0]
