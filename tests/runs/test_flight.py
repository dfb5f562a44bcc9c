import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from roundoff.errors import RunFolderError
from roundoff.runs.flight import (
    COUNT,
    MAX_DEPTH,
    NUM_RECORDS,
    TOTAL_BYTES,
    FlightRecorder,
    read_flight,
    read_heartbeat,
    save_shared_flight,
)

WRITING_UNTIL_KILLED = """
import sys
from pathlib import Path
from roundoff.runs.flight import FlightRecorder
recorder = FlightRecorder.create(Path(sys.argv[1]))
step = 0
while True:
    recorder.note(step=step, phase="forward")
    recorder.enter("forward", "<model>")
    for layer in range(40):
        recorder.enter("forward", f"blocks.{layer}")
        recorder.op(f"aten.op{layer}")
        if step == 30 and layer == 7:
            print("ready", flush=True)
        recorder.op_done()
        recorder.leave(f"blocks.{layer}")
    recorder.leave("<model>")
    step += 1
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flight-rank0.bin"


def test_shows_step_phase_sites_and_op_of_a_process_that_is_still_running(path: Path):
    recorder = FlightRecorder.create(path)
    recorder.note(step=12, phase="forward")
    recorder.enter("forward", "<model>")
    recorder.enter("forward", "blocks.0")
    recorder.leave("blocks.0")
    recorder.enter("forward", "blocks.1")
    recorder.op("aten.bmm")
    flight = read_flight(path)
    assert (flight.step, flight.phase, flight.sites, flight.site) == (
        12,
        "forward",
        ("<model>", "blocks.1"),
        "blocks.1",
    )
    assert (flight.op, flight.is_op_done, flight.pid) == ("aten.bmm", False, os.getpid())
    recorder.op_done()
    assert read_flight(path).is_op_done


def test_the_last_records_are_there_with_their_times(path: Path):
    before = time.time()
    recorder = FlightRecorder.create(path)
    recorder.note(step=3, phase="eval")
    recorder.enter("eval", "head")
    recorder.leave("head")
    flight = read_flight(path)
    assert [(record.kind, record.name) for record in flight.records] == [
        ("step", "3"),
        ("phase", "eval"),
        ("enter", "head"),
        ("leave", "head"),
    ]
    assert before - 1 < flight.records[0].time <= flight.records[-1].time == flight.heartbeat < time.time() + 1
    assert flight.num_records == read_heartbeat(path) == 4


def test_a_beat_moves_the_heartbeat_and_nothing_else(path: Path):
    recorder = FlightRecorder.create(path)
    recorder.note(step=3, phase="replay")
    before = read_flight(path)
    recorder.beat()
    after = read_flight(path)
    assert (after.step, after.phase, after.sites) == (before.step, before.phase, before.sites)
    assert after.num_records == before.num_records + 1
    assert after.heartbeat > before.heartbeat


def test_before_the_first_step_nothing_is_claimed(path: Path):
    FlightRecorder.create(path)
    flight = read_flight(path)
    assert (flight.step, flight.phase, flight.sites, flight.op, flight.records) == (None, None, (), None, ())


def test_a_module_that_an_exception_ended_is_gone_when_the_one_around_it_ends(path: Path):
    recorder = FlightRecorder.create(path)
    for site in ("<model>", "encoder", "encoder.0"):
        recorder.enter("forward", site)
    recorder.leave("encoder")
    assert read_flight(path).sites == ("<model>",)
    recorder.leave("encoder.0")  # its hook comes late: it is not on the stack any more
    assert read_flight(path).sites == ("<model>",)
    recorder.clear()
    assert read_flight(path).sites == ()


def test_a_module_that_calls_itself_is_left_once_at_a_time(path: Path):
    recorder = FlightRecorder.create(path)
    recorder.enter("forward", "cell")
    recorder.enter("forward", "cell")
    recorder.leave("cell")
    assert read_flight(path).sites == ("cell",)


def test_the_ring_goes_round_and_keeps_the_newest(path: Path):
    recorder = FlightRecorder.create(path)
    for step in range(3 * NUM_RECORDS):
        recorder.note(step=step, phase=None)
    flight = read_flight(path)
    assert flight.records[-1].name == str(3 * NUM_RECORDS - 1)
    assert [int(record.name) for record in flight.records] == list(
        range(3 * NUM_RECORDS - len(flight.records), 3 * NUM_RECORDS)
    )
    assert len(flight.records) > NUM_RECORDS * 0.9


def test_a_stack_deeper_than_the_file_has_room_for_is_cut(path: Path):
    recorder = FlightRecorder.create(path)
    for depth in range(MAX_DEPTH + 50):
        recorder.enter("forward", f"m{depth}")
    assert read_flight(path).sites == tuple(f"m{depth}" for depth in range(MAX_DEPTH))
    for depth in reversed(range(MAX_DEPTH + 50)):
        recorder.leave(f"m{depth}")
    assert read_flight(path).sites == ()


def test_names_beyond_the_room_for_them_share_one(path: Path):
    recorder = FlightRecorder.create(path)
    for number in range(2000):
        recorder.op(f"{number:0>399}")
    recorder.enter("x", "y" * 399)
    flight = read_flight(path)
    assert flight.sites == ("<unnamed>",)
    recorder.leave("y" * 399)
    assert read_flight(path).sites == ()


def test_a_record_that_was_not_finished_is_not_seen(path: Path):
    recorder = FlightRecorder.create(path)
    recorder.note(step=0, phase=None)
    recorder.note(step=1, phase=None)
    data = bytearray(path.read_bytes())
    data[8 * COUNT : 8 * COUNT + 8] = (1).to_bytes(8, "little")  # died before the second was counted
    path.write_bytes(data)
    assert [record.name for record in read_flight(path).records] == ["0"]


def test_a_forked_process_does_not_write_into_its_parents_file(path: Path):
    recorder = FlightRecorder.create(path)
    recorder.note(step=1, phase="forward")
    child = os.fork()
    if child == 0:
        try:
            recorder.note(step=99, phase="eval")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert read_flight(path).step == 1


def test_after_closing_notes_are_lost_and_nothing_breaks(path: Path):
    recorder = FlightRecorder.create(path)
    recorder.note(step=1, phase="forward")
    recorder.close()
    recorder.enter("forward", "late")
    recorder.leave("late")
    assert read_flight(path).num_records == 2


def test_a_file_that_is_cut_short_ends_no_process(path: Path):
    code = "import os\n" + WRITING_UNTIL_KILLED.replace(
        "while True:", "while step < 20:\n    os.truncate(sys.argv[1], 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_ends_the_notes_and_nothing_else(path: Path, request: pytest.FixtureRequest):
    recorder = FlightRecorder.create(path)
    recorder.note(step=1, phase="forward")
    request.getfixturevalue("full_disk")
    for step in range(100):
        recorder.note(step=step, phase="backward")
    assert not path.exists()  # a file that does not change would look like a process that hangs


def test_records_are_read_back_in_order_across_the_writes_of_the_ring(path: Path):
    recorder = FlightRecorder.create(path)
    for step in range(1, 5 * 32 + 7):
        recorder.note(step=step, phase=None)
        assert [record.name for record in read_flight(path).records] == [str(n) for n in range(1, step + 1)]


def test_a_killed_process_leaves_a_file_that_shows_where_it_was(path: Path):
    code = [sys.executable, "-c", WRITING_UNTIL_KILLED, str(path)]
    process = subprocess.Popen(code, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    flight = read_flight(path)
    assert flight.step is not None
    assert flight.step >= 30
    assert flight.phase == "forward"
    kinds = {record.kind for record in flight.records}
    assert kinds >= {"enter", "leave", "op"}
    times = [record.time for record in flight.records]
    assert times == sorted(times)


def test_notes_in_shared_memory_are_written_when_the_parent_saves_them(path: Path, monkeypatch: pytest.MonkeyPatch):
    shared = mmap.mmap(-1, TOTAL_BYTES)
    recorder = FlightRecorder.create(path, shared=shared)
    recorder.note(step=0, phase="forward")  # the first one also goes into the file
    num_writes = 0
    pwrite = os.pwrite

    def counting(*args: Any) -> int:
        nonlocal num_writes
        num_writes += 1
        return pwrite(*args)

    monkeypatch.setattr(os, "pwrite", counting)
    monkeypatch.setattr("roundoff.runs.flight._NS_BETWEEN_WRITES", 10**18)
    for step in range(1, 3 * 32):
        recorder.note(step=step, phase="forward")
        recorder.enter("forward", "<model>")
        recorder.leave("<model>")
    recorder.enter("forward", "<model>")
    assert num_writes == 1  # of the model's name
    save_shared_flight(shared, path)
    flight = read_flight(path)
    assert (flight.step, flight.phase, flight.site) == (95, "forward", "<model>")
    assert flight.num_records == len(flight.records) == 2 + 3 * 95 + 1
    assert [record.name for record in flight.records if record.kind == "step"] == [str(step) for step in range(96)]


def test_the_file_follows_shared_memory_now_and_then(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("roundoff.runs.flight._NS_BETWEEN_WRITES", 0)
    recorder = FlightRecorder.create(path, shared=mmap.mmap(-1, TOTAL_BYTES))
    for step in range(1, 5 * 32 + 7):
        recorder.note(step=step, phase=None)
        assert [record.name for record in read_flight(path).records] == [str(n) for n in range(1, step + 1)]


def test_what_was_closed_is_not_written_again_from_shared_memory(path: Path):
    shared = mmap.mmap(-1, TOTAL_BYTES)
    recorder = FlightRecorder.create(path, shared=shared)
    recorder.note(step=1, phase="forward")
    recorder.note(step=2, phase="backward")
    recorder.close()
    assert (read_flight(path).step, read_flight(path).phase) == (2, "backward")
    path.unlink()
    save_shared_flight(shared, path)
    assert not path.exists()


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device")])
def test_a_last_write_that_fails_is_no_error_and_leaves_no_file_open(
    path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
):
    recorder = FlightRecorder.create(path, shared=mmap.mmap(-1, TOTAL_BYTES))
    num_open = len(os.listdir("/proc/self/fd"))

    def fail(*args: Any) -> int:
        raise error

    monkeypatch.setattr(os, "pwrite", fail)
    recorder.close()
    assert len(os.listdir("/proc/self/fd")) == num_open - 1


def test_a_forked_process_does_not_write_into_the_memory_that_its_parent_shares(path: Path):
    shared = mmap.mmap(-1, TOTAL_BYTES)
    recorder = FlightRecorder.create(path, shared=shared)
    recorder.note(step=1, phase="forward")
    child = os.fork()
    if child == 0:
        try:
            recorder.note(step=99, phase="eval")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    save_shared_flight(shared, path)
    assert read_flight(path).step == 1


def test_a_living_process_is_read_without_confusion_at_any_moment(path: Path):
    process = subprocess.Popen([sys.executable, "-c", WRITING_UNTIL_KILLED, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        for _ in range(30):
            flight = read_flight(path)
            times = [record.time for record in flight.records]
            assert times == sorted(times)
            assert all(record.name != "?" for record in flight.records)
            assert all(site == "<model>" or site.startswith("blocks.") for site in flight.sites)
    finally:
        process.kill()
        process.communicate(timeout=300)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "0 bytes instead of"),
        (bytes(TOTAL_BYTES), "no flight recorder's file"),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(path: Path, content: bytes, why: str):
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match=why):
        read_flight(path)
    path.unlink()
    with pytest.raises(RunFolderError, match="No such file"):
        read_flight(path)
