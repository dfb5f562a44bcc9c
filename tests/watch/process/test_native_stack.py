import subprocess
import sys
from pathlib import Path

import pytest

from roundoff.watch.process.child_monitor import write_native_stacks


@pytest.mark.usefixtures("needs_gdb")
def test_stacks_of_a_living_process_are_appended_and_it_goes_on(tmp_path: Path):
    path = tmp_path / "stacks.txt"
    code = "print('ready', flush=True); input(); print('done', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        assert write_native_stacks(process.pid, path, heading="first")
        assert write_native_stacks(process.pid, path, heading="second")
        assert process.communicate("go on\n", timeout=60) == ("done\n", None)
    text = path.read_text()
    assert [line for line in text.splitlines() if line.startswith("== ")] == ["== first", "== second"]
    assert f"(LWP {process.pid})" in text
    assert text.count("#0 ") >= 2


def test_a_process_that_is_gone_leaves_no_stacks(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=300)
    assert not write_native_stacks(process.pid, tmp_path / "stacks.txt", heading="none")
    assert not (tmp_path / "stacks.txt").exists()


def test_without_gdb_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert not write_native_stacks(1, tmp_path / "stacks.txt", heading="none")
