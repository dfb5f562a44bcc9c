from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pytest

from roundoff.errors import RunFolderError
from roundoff.runs import Metrics, MirrorStoppedWarning, Run, RunInfo, RunWriter


def test_a_mirrored_run_opens_and_holds_the_same(tmp_path: Path, make_events):
    with RunWriter.create(tmp_path / "a", RunInfo(), strict=True, mirror=f"file://{tmp_path}/far/b") as writer:
        for step in range(3):
            writer.write_events(make_events(step))
            writer.write_metrics(Metrics(step=step))
            writer.flush()
        with writer.tensors(2) as tensors:
            tensors.add("a", np.zeros(3), dtype="F64", shape=(3,))
    near, far = Run.open(tmp_path / "a"), Run.open(tmp_path / "far" / "b")
    assert far.info == near.info
    assert far.events() == near.events()
    assert far.metrics() == near.metrics()
    assert far.tensor_steps == [(0, 2)]


def test_finished_parts_are_copied_before_the_run_ends(tmp_path: Path, make_events):
    writer = RunWriter.create(tmp_path / "a", RunInfo(), strict=True, mirror="memory://mirrored/a")
    writer.write_events(make_events(0))
    writer.flush()
    writer._mirror.close()
    filesystem = fsspec.filesystem("memory")
    assert sorted(filesystem.find("/mirrored/a")) == [
        "/mirrored/a/events/rank0-part-00000.parquet",
        "/mirrored/a/run.json",
    ]


def test_a_mirror_that_fails_warns_once_and_the_recording_goes_on(tmp_path: Path, make_events):
    (tmp_path / "file").touch()
    writer = RunWriter.create(tmp_path / "a", RunInfo(), mirror=f"file://{tmp_path}/file/b")

    def train() -> None:
        for step in range(3):
            writer.write_events(make_events(step))
            writer.flush()
        writer.close()

    with pytest.warns(MirrorStoppedWarning) as caught:
        train()
    (warning,) = caught
    assert str(warning.message).startswith(
        f"roundoff stopped copying '{tmp_path}/a' to 'file://{tmp_path}/file/b'; the recording goes on.\n"
        f"  why: {tmp_path}/a/run.json: "
    )
    assert writer.stopped is None
    assert Run.open(tmp_path / "a").steps == [0, 1, 2]
    assert Run.open(tmp_path / "a").info.status == "finished"


def test_a_url_that_nothing_understands_is_an_error_at_the_start(tmp_path: Path):
    with pytest.raises(RunFolderError, match=r"No run can be mirrored to 'nowhere://a'\.\n  why: Protocol not known"):
        RunWriter.create(tmp_path / "a", RunInfo(), mirror="nowhere://a")
    assert not (tmp_path / "a").exists()
