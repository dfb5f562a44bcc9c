"""Anomalies, replay info and origins, written and read back."""

from pathlib import Path

import pytest

from roundoff.errors import RunFolderError
from roundoff.runs import Anomaly, ExceptionDetail, Origin, ReplayInfo, Run, RunInfo, RunWriter, SpikeDetail


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
