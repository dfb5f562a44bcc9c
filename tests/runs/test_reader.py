from pathlib import Path

import numpy as np
import pytest

from roundoff.errors import RunFolderError, UsageError
from roundoff.runs import (
    EVENTS,
    Call,
    ClipDetail,
    HalfBatchProbe,
    Interned,
    Metrics,
    OverfitProbe,
    Run,
    RunInfo,
    RunWriter,
    replay_path,
)
from roundoff.runs.files.columns import Values


@pytest.fixture
def run(tmp_path: Path, make_events, parameters, hashes) -> Run:
    """Two ranks and four steps, two in each part."""
    for rank in (0, 1):
        with RunWriter.create(tmp_path / "run", RunInfo(), rank=rank, strict=True) as writer:
            for step in range(4):
                writer.write_events(make_events(step))
                writer.write(Metrics(step=step, loss=1.0 / (step + 1)))
                if step % 2:
                    writer.flush()
            writer.write(Call(step=3, call="clip", detail=ClipDetail(max_norm=2.0)))
            writer.write_parameters(parameters)
            writer.write_hashes(hashes)
    return Run.open(tmp_path / "run")


def test_a_run_knows_its_ranks_and_steps(run: Run):
    assert run.ranks == [0, 1]
    assert run.steps == [0, 1, 2, 3]


def test_all_events_come_by_rank_in_the_order_they_were_written(run: Run):
    table = run.events()
    assert list(table.columns) == ["rank", *EVENTS.names]
    assert table["rank"].to_list() == [0] * 24 + [1] * 24
    assert table["step"].to_list() == [0] * 6 + [1] * 6 + [2] * 6 + [3] * 6 + [0] * 6 + [1] * 6 + [2] * 6 + [3] * 6
    assert table["site"].to_list()[:2] == ["blocks.0.mlp", "blocks.1.mlp"]


def test_events_are_filtered(run: Run):
    table = run.events(step={1, 2}, rank=1, site="*.1.*", op="aten.bmm#1")
    assert table["rank"].to_list() == [1, 1]
    assert table["step"].to_list() == [1, 2]
    assert table["order"].to_list() == [3, 3]


def test_only_the_requested_columns_are_returned(run: Run):
    assert list(run.events(columns=["hash", "step"], site="blocks.*").columns) == ["rank", "hash", "step"]
    assert list(run.events(columns=["rank"]).columns) == ["rank"]


def test_an_unknown_column_is_an_error(run: Run):
    with pytest.raises(UsageError, match="The table events has no column 'norm'"):
        run.events(columns=["norm"])


def test_nothing_found_is_an_empty_table_with_the_same_columns(run: Run):
    empty, whole = run.events(step=99), run.events()
    assert list(empty.columns) == list(whole.columns)
    numbers = [name for name in whole.columns if isinstance(whole[name], Values)]
    assert [empty.numbers(name).dtype for name in numbers] == [whole.numbers(name).dtype for name in numbers]
    assert all(empty.texts(name).to_list() == [] for name in whole.columns if name not in numbers)
    assert run.events(site="nowhere").num_rows == 0


def test_parts_of_other_steps_are_not_read(run: Run):
    (run.path / "events" / "rank0-part-00000.parquet").write_bytes(b"broken")
    with pytest.raises(RunFolderError, match=r"events/rank0-part-00000\.parquet' cannot be read"):
        run.events(step=2, rank=0)
    assert run.events(step=2, rank=1).num_rows == 6


def test_events_come_one_by_one(run: Run):
    events = list(run.iter_events(step=2, phase="backward"))
    assert [(event.rank, event.order, event.hash) for event in events] == [
        (0, 1, 2001),
        (0, 4, 2004),
        (1, 1, 2001),
        (1, 4, 2004),
    ]


def test_a_shape_that_is_none_is_an_error_that_names_the_run(tmp_path: Path, make_events):
    with RunWriter.create(tmp_path / "run", RunInfo(), strict=True) as writer:
        writer.write_events(make_events(0, shape=Interned.constant("8xmany", 6)))
    with pytest.raises(RunFolderError, match=r"An event in '.*run' cannot be read"):
        list(Run.open(tmp_path / "run").iter_events())


def test_lines_come_back_for_each_rank(run: Run):
    assert [metrics.loss for metrics in run.metrics(rank=1)] == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert run.calls() == [Call(step=3, call="clip", detail=ClipDetail(max_norm=2.0))]
    assert run.metrics(rank=7) == []


def test_a_line_that_is_not_metrics_is_named(run: Run):
    path = run.path / "metrics-rank0.jsonl"
    path.write_text(path.read_text().replace('"step": 2', '"step": "two"'))
    with pytest.raises(
        RunFolderError, match=r"metrics-rank0\.jsonl' line 3 cannot be read\.\n  why: 'step' holds 'two'"
    ):
        run.metrics()


def test_parameters_and_hashes_come_back(run: Run):
    parameters = run.parameters(rank=0)
    assert parameters["parameter"].to_list() == ["fc.weight", "fc.bias"]
    assert parameters["grad_l2"].to_list() == [2.0, None]
    assert parameters["grad_absmax"].to_list() == [None, None]
    assert parameters["absmax"].to_list() == [0.5, np.inf]
    hashes = run.hashes(step=3)
    assert hashes["rank"].to_list() == [0, 0, 1, 1]
    assert hashes["hash"].to_list() == [1, 2**64 - 1] * 2
    assert run.hashes(step=4).num_rows == run.parameters(step=range(3)).num_rows == 0


def test_probes_come_back(tmp_path: Path):
    with RunWriter.create(tmp_path / "run", RunInfo(), strict=True) as writer:
        writer.write(OverfitProbe(step=3, losses=(float("inf"), 1.0)))
        writer.write(HalfBatchProbe(step=3, loss=2.0, halves=(1.0, None)))
    run = Run.open(tmp_path / "run")
    assert run.probes() == [
        OverfitProbe(step=3, losses=(float("inf"), 1.0)),
        HalfBatchProbe(step=3, loss=2.0, halves=(1.0, None)),
    ]
    assert run.probes(OverfitProbe) == run.probes()[:1]


def test_a_probe_that_only_a_newer_version_knows_is_left_out(tmp_path: Path):
    RunWriter.create(tmp_path / "run", RunInfo(), strict=True).close()
    (tmp_path / "run" / "probes.jsonl").write_text('{"step": 0, "probe": "crystal ball"}\n')
    assert Run.open(tmp_path / "run").probes() == []


def test_tensors_and_batches_come_back(tmp_path: Path):
    with RunWriter.create(tmp_path / "run", RunInfo(), rank=0, strict=True) as writer:
        for step in (3, 12):
            with writer.tensors(step) as tensors:
                tensors.add("a", np.full(2, step, np.float32), dtype="F32", shape=(2,))
        for index in range(2):
            with writer.batch(index) as batch:
                batch.add("input0", np.full(2, index), dtype="I64", shape=(2,))
    run = Run.open(tmp_path / "run")
    assert run.tensor_steps == [(0, 3), (0, 12)]
    assert run.tensor_file(12)["a"].tolist() == [12, 12]
    assert [batch["input0"].tolist() for batch in run.batches()] == [[0, 0], [1, 1]]
    with pytest.raises(RunFolderError, match=r"no whole tensors of step 4, rank 0\.\n  why: .*: 3, 12\."):
        run.tensor_file(4)


def test_a_replayed_step_is_a_run_of_its_own(run: Run, make_events):
    with RunWriter.create(replay_path(run.path, step=3), RunInfo(), strict=True) as writer:
        writer.write_events(make_events(3))
    assert run.replayed_steps == [3]
    assert run.replay(3).steps == [3]


def test_leftover_temporary_files_are_ignored(run: Run):
    for name in ("run.json.tmp", "events/rank0-part-00002.parquet.tmp", "findings.json.tmp"):
        (run.path / name).write_bytes(b"half a fi")
    assert Run.open(run.path).events().num_rows == 48
    assert run.findings() is None


def test_findings_that_cannot_be_written_are_an_error(run: Run, fill_disk):
    fill_disk("findings.json")
    with pytest.raises(RunFolderError, match=r"findings\.json' cannot be written\.\n  why: No space left on device"):
        run.write_findings([])


def test_a_run_can_be_read_without_torch(run: Run):
    import subprocess
    import sys

    script = f"""
import sys
from roundoff.runs import Run
run = Run.open({str(run.path)!r})
assert len(list(run.iter_events())) == 48 and run.metrics() and run.calls()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=300)
