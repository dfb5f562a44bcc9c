"""A folder of small runs of every kind, served once for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.record import recording
from tests.report.sample_runs import HOSTILE, diagnosed, record_run, write_metrics_run
from tests.serve.serving import Server, serving

HOSTILE_NAME = HOSTILE.replace("/", "")


def record_tensors(folder: Path) -> None:
    """Record a step with its whole tensors."""
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    with recording(net, to=folder, steps=range(1), level="tensors"):
        net(torch.ones(3, 4)).sum().backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: one that broke, two that can be compared, one with tensors, one of hostile name, and a damaged one."""
    folder = tmp_path_factory.mktemp("served") / "runs"
    diagnosed(record_run(folder / "broken"))
    record_run(folder / "reference", is_broken=False)
    record_run(folder / "candidate", is_broken=False, eps=0.1)
    record_tensors(folder / "tensors")
    write_metrics_run(folder / HOSTILE_NAME, [2.0, 1.0], name=HOSTILE)
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{")
    (folder / "no run").mkdir()
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder) as server:
        yield server
