import importlib
import os
import signal
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from roundoff.diagnose.process.uncaught_exception import uncaught_exceptions
from roundoff.runs import Anomaly, Ending, Finding, FlightRecorder, Run, RunInfo, RunWriter, Severity, flight_path
from roundoff.watch.detector import exception_detail
from tests.run_folders import write_run


class Broken(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2:
            raise ValueError("sample 2 has no label")
        return torch.zeros(1)


class Crashing(Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGSEGV)
        return torch.zeros(1)


def found_after(folder: Path, error: BaseException, *, status: str = "failed") -> list[Finding]:
    """Write the run that an exception in step 5 leaves, and look at it."""
    writer = RunWriter.create(folder, RunInfo())
    recorder = FlightRecorder.create(flight_path(folder, rank=0))
    recorder.note(step=5, phase="forward")
    recorder.enter("forward", "<model>")
    recorder.enter("forward", "head")
    detail = exception_detail(error, site="head")
    writer.write(Anomaly(step=5, kind="exception", phase="forward", name=type(error).__name__, detail=detail))
    writer.close(status=status)
    return uncaught_exceptions(Run.open(folder))


def caught(function) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_exception_is_named_with_its_line_step_and_site(tmp_path: Path):
    error = caught(lambda: torch.zeros(2, 3) @ torch.zeros(2, 3))
    (finding,) = found_after(tmp_path / "run", error)
    assert finding.title.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert (finding.rule, finding.step, finding.phase, finding.site) == ("exception", 5, "forward", "head")
    assert finding.source is not None
    assert finding.source.endswith(f"test_uncaught_exception.py:{caught_line()}")
    assert finding.severity is Severity.ERROR


def caught_line() -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if "torch.zeros(2, 3) @" in line)


def test_an_exception_inside_torch_is_traced_to_the_users_line(tmp_path: Path):
    error = caught(lambda: torch.nn.Linear(3, 2)(torch.zeros(2, 5)))
    (finding,) = found_after(tmp_path / "run", error)
    assert finding.source is not None
    assert "test_uncaught_exception.py" in finding.source


def test_an_exception_in_a_worker_is_named_as_such_with_the_workers_line(tmp_path: Path):
    error = caught(lambda: list(DataLoader(Broken(), num_workers=1)))
    (finding,) = found_after(tmp_path / "run", error)
    assert finding.title == "DataLoader worker 0 raised ValueError: sample 2 has no label"
    assert finding.source is not None
    assert "test_uncaught_exception.py" in finding.source
    assert finding.why.startswith("raised in __getitem__, ")


def test_a_worker_that_was_killed_is_named_as_such(tmp_path: Path):
    error = RuntimeError("DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that ...")
    (finding,) = found_after(tmp_path / "run", error)
    assert finding.title == "a DataLoader worker is killed by signal: Bus error"
    assert "/dev/shm" in finding.why


def test_a_worker_that_crashed_is_named_with_its_signal(tmp_path: Path):
    error = caught(lambda: list(DataLoader(Crashing(), num_workers=1)))
    (finding,) = found_after(tmp_path / "run", error)
    assert finding.title == "a DataLoader worker is killed by signal: Segmentation fault"


def test_a_syntax_error_is_at_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_helper.py").write_text("x = 1\ndef f(:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (finding,) = found_after(tmp_path / "run", caught(lambda: importlib.import_module("broken_helper")))
    assert finding.source == "broken_helper.py:2"
    assert finding.title == "SyntaxError: invalid syntax (broken_helper.py, line 2)"
    assert finding.why == "Python cannot compile broken_helper.py:2, so nothing of it has run"
    assert finding.fix == "correct that line"


def test_a_syntax_error_in_text_that_is_evaluated_is_at_the_line_that_evaluates(tmp_path: Path):
    (finding,) = found_after(tmp_path / "run", caught(lambda: eval("1 +")))
    assert finding.why.startswith("raised in <lambda>, ")
    assert finding.source is not None
    assert "test_uncaught_exception.py" in finding.source


def test_a_missing_module_is_to_be_installed(tmp_path: Path):
    (finding,) = found_after(tmp_path / "run", caught(lambda: importlib.import_module("no_such_package.inner")))
    assert finding.title == "ModuleNotFoundError: No module named 'no_such_package'"
    assert "install the package that provides 'no_such_package'" in finding.fix
    assert finding.source is not None
    assert "test_uncaught_exception.py" in finding.source


def test_a_name_that_a_package_lacks_is_said_to_be(tmp_path: Path):
    def import_it() -> None:
        from torch import nothing_of_this_name  # type: ignore[attr-defined]  # noqa: F401

    (finding,) = found_after(tmp_path / "run", caught(import_it))
    assert finding.fix == "correct the name, or install a version of the package that has it"


def test_a_lack_of_host_memory_is_named_as_such(tmp_path: Path):
    error = caught(lambda: torch.empty(2**60, dtype=torch.uint8))
    (finding,) = found_after(tmp_path / "run", error)
    assert finding.title == "out of host memory"
    assert "you tried to allocate 1152921504606846976 bytes" in finding.why


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")]
)
def test_other_lacks_of_memory_are_named_too(tmp_path: Path, error: Exception):
    (finding,) = found_after(tmp_path / "run", error)
    assert finding.title.startswith("out of ")


def test_the_loss_of_a_rank_that_crashed_is_a_note(tmp_path: Path):
    error = RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3011")
    (alone,) = found_after(tmp_path / "run", error)
    assert alone.severity is Severity.ERROR
    Ending(pid=7, signal=11).write(tmp_path / "run", rank=1)
    (finding,) = uncaught_exceptions(Run.open(tmp_path / "run"))
    assert finding.severity is Severity.NOTE


def test_an_exception_that_the_script_survived_is_none(tmp_path: Path):
    assert found_after(tmp_path / "run", ValueError("caught"), status="finished") == []


def test_a_healthy_run_has_none(tmp_path: Path):
    assert uncaught_exceptions(write_run(tmp_path / "run")) == []


@pytest.mark.parametrize(
    ("when", "words"),
    [("before", "raised before the first step in "), ("after", "raised after step 5, the last one, in ")],
)
def test_an_exception_outside_of_any_step_is_said_to_be(tmp_path: Path, when: str, words: str):
    error = caught(lambda: torch.zeros(2, 3) @ torch.zeros(2, 3))
    writer = RunWriter.create(tmp_path / "run", RunInfo())
    detail = exception_detail(error, when=when)
    writer.write(Anomaly(step=5, kind="exception", name=type(error).__name__, detail=detail))
    writer.close(status="failed")
    (finding,) = uncaught_exceptions(Run.open(tmp_path / "run"))
    assert (finding.rule, finding.step, finding.phase) == ("exception", None, None)
    assert finding.why.startswith(words)
    assert finding.source is not None
    assert "test_uncaught_exception.py" in finding.source
