import signal
from pathlib import Path

import pytest

from roundoff.diagnose.process.deaths import process_deaths
from roundoff.runs import (
    Ending,
    Finding,
    FlightRecorder,
    Run,
    RunInfo,
    RunWriter,
    Severity,
    crash_path,
    flight_path,
    native_crash_path,
)

GIB = 2**30
HANG = """\
== hang: no progress for 60 s, 2026-01-01 00:00:00 +0000
Current thread 0x00007f02 (most recent call first):
"""
IN_ALL_REDUCE = (
    HANG
    + """\
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 9 in all_reduce
  File "/home/me/project/train.py", line 30 in main
"""
)
IN_BACKWARD = HANG + '  File "/v/site-packages/torch/autograd/graph.py", line 979 in _engine_run_backward\n'
IN_A_LOOP = HANG + '  File "/home/me/project/train.py", line 17 in wait_for_nothing\n'
IN_THE_LOADER = (
    HANG
    + """\
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1284 in _try_get_data
  File "/home/me/project/train.py", line 21 in main
"""
)
CRASH = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f02 (most recent call first):
  File "/home/me/project/model.py", line 41 in forward
"""
NATIVE_CRASH = """\
== crash: signal 11 in thread 7, 2026-01-01 00:00:00 +0000
Thread 1 (Thread 0x7f02 (LWP 7) "python"):
#0  <signal handler called>
#1  0x00007f14 in mkl_blas_sgemm () from /v/torch/lib/libtorch_cpu.so
#2  0x00007f16 in at::_ops::mm::call(at::Tensor const&) () from /v/torch/lib/libtorch_cpu.so
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    RunWriter.create(tmp_path / "run", RunInfo(ranks=2))
    return tmp_path / "run"


def fly(folder: Path, *, rank: int = 0, op: str | None = None) -> None:
    recorder = FlightRecorder.create(flight_path(folder, rank=rank))
    recorder.note(step=12, phase="forward")
    recorder.enter("forward", "<model>")
    recorder.enter("forward", "blocks.3.mlp")
    if op:
        recorder.op(op)


def only(folder: Path) -> Finding:
    (finding,) = process_deaths(Run.open(folder))
    return finding


def place(finding: Finding) -> tuple[object, ...]:
    return finding.rule, finding.step, finding.phase, finding.site, finding.op, finding.rank


def test_a_crash_names_step_site_op_line_and_native_frame(folder: Path):
    fly(folder)
    crash_path(folder, rank=0).write_text(CRASH)
    native_crash_path(folder, rank=0).write_text(NATIVE_CRASH)
    Ending(pid=7, signal=signal.SIGSEGV).write(folder, rank=0)
    finding = only(folder)
    assert place(finding) == ("native-crash", 12, "forward", "blocks.3.mlp", "aten.mm", 0)
    assert (finding.source, finding.severity) == ("project/model.py:41", Severity.ERROR)
    assert finding.title == "the process crashed with SIGSEGV in aten.mm"
    assert finding.why == (
        "it accessed memory that does not belong to it; native code was in mkl_blas_sgemm (libtorch_cpu.so), "
        "called by at::_ops::mm::call (libtorch_cpu.so); Python was in forward, project/model.py:41"
    )
    assert finding.evidence[0] == {
        "native_stack": ["mkl_blas_sgemm (libtorch_cpu.so)", "at::_ops::mm::call (libtorch_cpu.so)"]
    }


def test_an_op_that_was_noted_is_believed_before_the_native_stack(folder: Path):
    fly(folder, op="mylib.scatter")
    native_crash_path(folder, rank=0).write_text(NATIVE_CRASH)
    Ending(pid=7, signal=signal.SIGSEGV, has_ops=True).write(folder, rank=0)
    assert only(folder).op == "mylib.scatter"


def test_a_crash_between_two_ops_names_the_last_one(folder: Path):
    recorder = FlightRecorder.create(flight_path(folder, rank=0))
    recorder.op("aten.mm")
    recorder.op_done()
    Ending(pid=7, signal=signal.SIGSEGV, has_ops=True).write(folder, rank=0)
    finding = only(folder)
    assert finding.op is None
    assert finding.why.endswith("the last op before was aten.mm")


def test_a_crash_without_stacks_or_flight_is_still_one(folder: Path):
    Ending(pid=7, signal=signal.SIGABRT).write(folder, rank=0)
    finding = only(folder)
    assert (finding.rule, finding.step, finding.op) == ("native-crash", None, None)
    assert "roundoff run --ops" in finding.fix


def test_a_crash_that_no_one_waited_for_is_reported_from_its_own_stacks(folder: Path):
    fly(folder, rank=1)
    (folder / "metrics-rank1.jsonl").touch()
    crash_path(folder, rank=1).write_text(CRASH)
    finding = only(folder)
    assert place(finding) == ("native-crash", 12, "forward", "blocks.3.mlp", None, 1)
    assert finding.source == "project/model.py:41"


def test_a_crash_after_the_training_is_reported_as_such(folder: Path):
    fly(folder)
    Ending(pid=7, signal=signal.SIGSEGV, was_over=True).write(folder, rank=0)
    finding = only(folder)
    assert finding.severity is Severity.WARNING
    assert finding.title == "the process crashed with SIGSEGV at process exit, after the training had ended"
    assert (finding.phase, finding.site) == (None, None)


def test_a_kill_without_evidence_does_not_blame_memory(folder: Path):
    fly(folder)
    Ending(
        pid=7, signal=signal.SIGKILL, last_rss_bytes=GIB, peak_rss_bytes=2 * GIB, available_bytes=20 * GIB,
        memory_bytes=24 * GIB, num_oom_kills=0,
    ).write(folder, rank=0)  # fmt: skip
    finding = only(folder)
    assert place(finding) == ("killed", 12, "forward", "blocks.3.mlp", None, 0)
    assert finding.title == "the process was killed (SIGKILL)"
    assert "it used 2.15 GB of 25.8 GB, and 21.5 GB were free" in finding.why


@pytest.mark.parametrize(
    "memory",
    [
        {"last_rss_bytes": 22 * GIB, "available_bytes": GIB, "num_oom_kills": 0},
        {"last_rss_bytes": 10 * GIB, "available_bytes": GIB // 2, "num_oom_kills": None},
        {"last_rss_bytes": GIB, "peak_rss_bytes": 12 * GIB, "available_bytes": 10 * GIB, "num_oom_kills": 1},
    ],
)
def test_a_kill_with_evidence_is_probably_out_of_memory(folder: Path, memory: dict[str, int]):
    fly(folder, op="aten.cat")
    Ending(pid=7, signal=signal.SIGKILL, memory_bytes=24 * GIB, **memory).write(folder, rank=0)
    finding = only(folder)
    assert finding.title == "the process was killed (SIGKILL), probably out of memory"
    assert finding.op == "aten.cat"
    assert "the last op that started was aten.cat" in finding.why


def test_someone_elses_lack_of_memory_is_no_evidence(folder: Path):
    Ending(
        pid=7, signal=signal.SIGKILL, peak_rss_bytes=GIB, available_bytes=20 * GIB, memory_bytes=24 * GIB,
        num_oom_kills=3,
    ).write(folder, rank=0)  # fmt: skip
    assert "probably" not in only(folder).title


def test_a_hang_names_where_it_is(folder: Path):
    fly(folder, op="mylib.spin")
    crash_path(folder, rank=0).write_text(IN_A_LOOP)
    Ending(pid=7, seconds_without_progress=61.2, has_ops=True).write(folder, rank=0)
    finding = only(folder)
    assert place(finding) == ("hang", 12, "forward", "blocks.3.mlp", "mylib.spin", 0)
    assert finding.title == "no progress for 61 s in mylib.spin"
    assert (finding.source, finding.severity) == ("project/train.py:17", Severity.ERROR)


def test_a_hang_in_the_data_loader_says_so(folder: Path):
    crash_path(folder, rank=0).write_text(IN_THE_LOADER)
    Ending(pid=7, seconds_without_progress=61.2).write(folder, rank=0)
    finding = only(folder)
    assert finding.why.startswith("it waits for a DataLoader worker")
    assert (finding.source, finding.fix.startswith("try num_workers=0")) == ("project/train.py:21", True)


def test_a_hang_that_went_on_is_a_note(folder: Path):
    crash_path(folder, rank=0).write_text(IN_A_LOOP)
    Ending(pid=7, seconds_without_progress=61.2, has_gone_on=True, exit_code=0).write(folder, rank=0)
    finding = only(folder)
    assert (finding.severity, finding.title) == (Severity.NOTE, "no progress for 61 s, then it continued")


def test_a_hang_that_we_stopped_is_no_interruption(folder: Path):
    crash_path(folder, rank=0).write_text(IN_A_LOOP)
    Ending(pid=7, seconds_without_progress=61.2, was_stopped=True, signal=signal.SIGTERM).write(folder, rank=0)
    finding = only(folder)
    assert (finding.rule, finding.title) == ("hang", "no progress for 61 s; it was stopped")


def test_a_rank_that_waits_for_a_hanging_one_is_related_to_it(folder: Path):
    crash_path(folder, rank=0).write_text(IN_ALL_REDUCE)
    crash_path(folder, rank=1).write_text(IN_A_LOOP)
    for rank in (0, 1):
        fly(folder, rank=rank)
        Ending(pid=7, seconds_without_progress=61.2).write(folder, rank=rank)
    finding = only(folder)
    assert (finding.rank, finding.source) == (1, "project/train.py:17")
    (waiting,) = finding.related
    assert (waiting.rank, waiting.op) == (0, "c10d.all_reduce")
    assert waiting.why.startswith("rank 0 waits for other ranks in c10d.all_reduce")


def test_without_native_stacks_a_rank_in_backward_is_taken_to_wait_for_another(folder: Path):
    crash_path(folder, rank=0).write_text(IN_BACKWARD)
    crash_path(folder, rank=1).write_text(IN_A_LOOP)
    for rank in (0, 1):
        Ending(pid=7, seconds_without_progress=61.2).write(folder, rank=rank)
    finding = only(folder)
    assert (finding.rank, [related.rank for related in finding.related]) == (1, [0])


def test_a_rank_that_waits_for_a_dead_one_is_related_to_it(folder: Path):
    crash_path(folder, rank=0).write_text(IN_ALL_REDUCE)
    Ending(pid=7, seconds_without_progress=61.2).write(folder, rank=0)
    Ending(pid=8, signal=signal.SIGSEGV).write(folder, rank=1)
    finding = only(folder)
    assert (finding.rule, finding.rank) == ("native-crash", 1)
    assert [related.rank for related in finding.related] == [0]


def test_ranks_that_all_wait_are_one_finding(folder: Path):
    for rank in (0, 1):
        crash_path(folder, rank=rank).write_text(IN_ALL_REDUCE)
        Ending(pid=7, seconds_without_progress=61.2).write(folder, rank=rank)
    finding = only(folder)
    assert (finding.rank, [related.rank for related in finding.related]) == (0, [1])


@pytest.mark.parametrize(
    "ending",
    [
        Ending(pid=7, signal=signal.SIGTERM),
        Ending(pid=7, signal=signal.SIGKILL, forwarded_signal=signal.SIGTERM),
        Ending(pid=7, exit_code=130, forwarded_signal=signal.SIGINT),
    ],
)
def test_an_interrupted_run_is_a_note(folder: Path, ending: Ending):
    ending.write(folder, rank=0)
    finding = only(folder)
    assert (finding.rule, finding.severity) == ("interrupted", Severity.NOTE)


def test_ranks_ended_because_another_crashed_are_not_mentioned(folder: Path):
    Ending(pid=7, signal=signal.SIGTERM).write(folder, rank=0)
    Ending(pid=8, signal=signal.SIGSEGV).write(folder, rank=1)
    assert only(folder).rank == 1


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_process_that_ended_by_itself_gives_no_finding(folder: Path, code: int):
    fly(folder)
    Ending(pid=7, exit_code=code).write(folder, rank=0)
    assert process_deaths(Run.open(folder)) == []


def test_a_run_that_no_one_waited_for_gives_no_finding(folder: Path):
    assert process_deaths(Run.open(folder)) == []
