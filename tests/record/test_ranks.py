"""Two ranks over gloo: each writes its own files, and nothing changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from roundoff.runs import Run

SCRIPT = Path(__file__).parent / "two_ranks.py"


def torchrun(*args: object) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_train_the_same_with_a_recording(kind: str, tmp_path: Path) -> None:
    torchrun(SCRIPT, kind, tmp_path / "plain")
    torchrun(SCRIPT, kind, tmp_path / "recorded", tmp_path / "run")
    for rank in range(2):
        plain = torch.load(tmp_path / f"plain-{rank}.pt", weights_only=True)
        recorded = torch.load(tmp_path / f"recorded-{rank}.pt", weights_only=True)
        assert plain["losses"] == recorded["losses"]
        assert all(torch.equal(plain["state"][key], recorded["state"][key]) for key in plain["state"])

    run = Run.open(tmp_path / "run")
    assert run.info.ranks == 2
    assert sorted(run.ranks) == [0, 1]
    events = run.events().to_list()
    for rank in range(2):
        mine = [e for e in events if e["rank"] == rank]
        assert {e["step"] for e in mine} == {0, 1, 2}
        sites = {e["site"] for e in mine}
        assert {"0", "3", "<loop>"} <= sites
        assert not any(site.startswith("module") for site in sites)
        lost = [e for e in mine if e["phase"] == "backward" and e["site"] == "<loop>" and not e["parameter"]]
        assert not any(e["op"] in ("aten.mm", "aten.native_batch_norm_backward") for e in lost)
        assert any(e["op"].startswith("c10d.") for e in mine)
    if kind == "ddp":
        assert gradients(events, rank=0) == gradients(events, rank=1)


def gradients(events: list[dict[str, object]], *, rank: int) -> dict[tuple[object, object], object]:
    return {(e["step"], e["parameter"]): e["hash"] for e in events if e["op"] == "gradient" and e["rank"] == rank}


@pytest.mark.slow
def test_ranks_of_one_launch_agree_on_a_numbered_folder(tmp_path: Path) -> None:
    torchrun("-m", "roundoff", "record", "--runs", tmp_path / "runs", SCRIPT, "ddp", tmp_path / "out")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "two_ranks-1"
    assert sorted(Run.open(folder).ranks) == [0, 1]
