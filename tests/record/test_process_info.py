"""What a run says about where it was made."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys

import pytest
import torch

from roundoff.record import recording
from roundoff.record.process_info import describe_process, launch_name, rank, world_size

LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT")  # fmt: skip


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


def test_command_packages_and_hardware_are_described():
    info = describe_process(seed=None, settings={"level": "summary"}, command=None)
    assert info.command == tuple(sys.argv)
    assert info.packages["python"] == platform.python_version()
    assert info.packages["torch"] == importlib.metadata.version("torch")  # without the build: 2.15.0, not 2.15.0+cu132
    assert info.packages["roundoff"]
    assert info.hardware["machine"] == platform.machine()
    assert info.hardware["threads"] == torch.get_num_threads()
    assert info.hardware["kernels"]
    assert info.settings == {"level": "summary"}
    assert (info.ranks, info.launch) == (1, None)


def test_the_seed_is_the_one_that_was_given_or_torchs():
    torch.manual_seed(11)
    assert describe_process(seed=None, settings={}, command=()).seed == 11
    assert describe_process(seed=3, settings={}, command=()).seed == 3


def test_a_seed_of_torch_that_json_readers_cannot_hold_is_shortened():
    torch.manual_seed(-1)
    assert 0 <= describe_process(seed=None, settings={}, command=()).seed < 2**63
    torch.manual_seed(0)


def test_the_commit_is_that_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert describe_process(seed=0, settings={}, command=()).git_commit is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q"], check=True, timeout=300)
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "a"], check=True, timeout=300)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True, timeout=300
    ).stdout.strip()
    assert describe_process(seed=0, settings={}, command=()).git_commit == head


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert describe_process(seed=0, settings={}, command=()).git_commit is None


def test_a_process_alone_is_rank_0_of_1():
    assert (rank(), world_size(), launch_name()) == (0, 1, None)


def test_the_rank_comes_from_the_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (rank(), world_size()) == (3, 8)


@pytest.mark.parametrize("value", ["", "none"])
def test_a_rank_that_is_no_number_is_no_rank(monkeypatch, value):
    monkeypatch.setenv("RANK", value)
    monkeypatch.setenv("WORLD_SIZE", value)
    assert (rank(), world_size()) == (0, 1)


def test_ranks_of_one_launch_have_a_name_in_common(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "here")
    monkeypatch.setenv("MASTER_PORT", "29500")
    names = set()
    for number in range(2):
        monkeypatch.setenv("RANK", str(number))
        names.add(launch_name())
    assert names == {"here:29500::0"}
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert launch_name() == "here:29500::1"


def test_an_untested_torch_is_said_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    for name in ("first", "second"):
        with recording(to=tmp_path / name):
            pass
    said = [line for line in capsys.readouterr().err.splitlines() if "9.9.0" in line]
    tried = "`roundoff doctor --self-test` tries it in a few seconds."
    assert said == [f"roundoff: torch 9.9.0 is untested (tested: 2.10 to 2.15); {tried}"]
