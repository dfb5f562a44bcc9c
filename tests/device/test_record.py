"""A recording on an accelerator: the training is untouched, the events are those of the CPU, waits are few."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from roundoff.record import recording
from roundoff.runs import Run
from tests.device.simulated_device import DeviceCounts, Execution, behaving, counting

WHAT: dict[str, dict[str, Any]] = {
    "summaries": {},
    "tensors": {"level": "tensors"},
    "inputs and histograms": {"inputs": True, "histograms": True},
    "fp64 reference": {"reference": "fp64"},
    "cpu reference": {"reference": "cpu"},
    "stacks": {"stacks": True},
}

SETTING_UP = {"aten._to_copy", "aten.uniform_", "aten.normal_", "aten.random_", "aten.fill_"}
OVERWRITING = {"aten.zero_", "aten.copy_"}
"""Ops whose first argument is memory that nothing has been written to yet."""


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(72, 10)
    )


def deep_net() -> nn.Module:
    blocks = (nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)) for _ in range(12))
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 16), *blocks, nn.Linear(16, 10))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(36, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.embed(x.flatten(2))).mean(1))
        return out


def train(
    device: str,
    make: Callable[[], nn.Module] = conv_net,
    *,
    num_steps: int = 2,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
    counts: list[DeviceCounts] | None = None,
) -> list[Tensor]:
    """Train on fixed data and return losses and weights; with `counts`, count from the end of one step to the next."""
    torch.manual_seed(0)
    model = make()
    x, y = torch.randn(16, 3, 6, 6).to(device), torch.randint(10, (16,)).to(device)
    model.to(device)
    stepper = optimizer(model.parameters(), lr=1e-2, foreach=True)  # type: ignore[call-arg]
    losses = []
    for _ in range(num_steps):
        with counting() as counted:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            stepper.step()
            stepper.zero_grad()
        losses.append(loss.detach())
        if counts is not None:
            counts.append(counted)
    return [*(loss.cpu() for loss in losses), *(parameter.detach().cpu() for parameter in model.parameters())]


def record(folder: Path, training: Callable[[], list[Tensor]], **options: Any) -> tuple[Run, list[Tensor]]:
    with recording(to=folder, strict=True, **options):
        result = training()
    return Run.open(folder), result


@pytest.mark.parametrize("make", [conv_net, Attention])
@pytest.mark.parametrize("what", WHAT)
def test_the_training_is_untouched(tmp_path: Path, what: str, make: Callable[[], nn.Module]) -> None:
    _, recorded = record(tmp_path / "run", lambda: train("sim", make), **WHAT[what])

    assert all(torch.equal(x, y) for x, y in zip(recorded, train("sim", make), strict=True))


@pytest.mark.parametrize(
    ("what", "execution"),
    [*((what, "when waited for") for what in WHAT), ("summaries", "at once"), ("summaries", "on a worker")],
)
def test_events_are_those_of_the_cpu(tmp_path: Path, what: str, execution: Execution) -> None:
    with behaving(execution=execution):
        there, _ = record(tmp_path / "there", lambda: train("sim:1"), **WHAT[what])
    here, _ = record(tmp_path / "here", lambda: train("cpu"), **WHAT[what])

    a, b = (_events(run) for run in (here, there))
    assert a.keys() == b.keys()
    in_model = [event for event in b.values() if event["site"] != "<loop>" and event["phase"] != "optimizer"]
    assert {event["device"] for event in in_model} == {"sim:1"}
    for key, event in a.items():
        for number in ("hash", "min", "max", "num_nan", "num_zero", "num_subnormal", "source", "histogram"):
            assert event[number] == b[key][number], (key, number)
        for number in ("sum_abs", "l2", "mean", "introduced_rms_ulps"):
            x, y = (math.nan if value is None else value for value in (event[number], b[key][number]))
            assert x == pytest.approx(y, rel=1e-6, abs=1e-12, nan_ok=True), (key, number)


def _events(run: Run) -> dict[tuple[Any, ...], dict[str, Any]]:
    names = ("step", "microbatch", "phase", "site", "op", "nth", "output")
    events = run.events().to_list()
    return {
        tuple(event[name] for name in names): event
        for event in events
        if event["op"] not in SETTING_UP and not (event["op"] in OVERWRITING and event["output"].startswith("input"))
    }


@pytest.mark.parametrize("execution", ["at once", "when waited for"])
@pytest.mark.parametrize("make", [conv_net, Attention, deep_net])
@pytest.mark.parametrize("what", [what for what in WHAT if what != "cpu reference"])  # which computes on the host
def test_a_recorded_step_waits_twice_however_many_ops_it_has(
    tmp_path: Path, what: str, make: Callable[[], nn.Module], execution: Execution
) -> None:
    counts: list[DeviceCounts] = []
    with behaving(execution=execution):
        record(tmp_path / "run", lambda: train("sim", make, num_steps=4, counts=counts), **WHAT[what])

    for step in counts[2:]:  # one for the copies of all tensors, one for the losses
        assert step.waits == ["device", "copy to host"], step.where("wait")


@pytest.mark.parametrize("execution", ["at once", "when waited for"])
def test_whole_tensors_are_those_of_the_step(tmp_path: Path, execution: Execution) -> None:
    with behaving(execution=execution):
        there = record(tmp_path / "there", lambda: train("sim"), level="tensors")[0].tensor_file(1)
    here = record(tmp_path / "here", lambda: train("cpu"), level="tensors")[0].tensor_file(1)

    names = [name for name in here if not any(op in name for op in (*SETTING_UP, *OVERWRITING))]
    assert len(names) > 50
    for name in names:
        np.testing.assert_allclose(there[name], here[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_without_fp64(tmp_path: Path) -> None:
    with behaving(fp64=False):
        there, _ = record(tmp_path / "there", lambda: train("sim"), reference="fp64")
    here, _ = record(tmp_path / "here", lambda: train("cpu"), reference="fp64")
    a, b = (_events(run) for run in (here, there))

    assert a.keys() == b.keys()
    for key, event in a.items():
        assert event["hash"] == b[key]["hash"]
        assert event["l2"] == pytest.approx(b[key]["l2"], rel=1e-6)


def test_a_model_over_two_devices(tmp_path: Path) -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8).to("sim:0"), nn.Linear(8, 2).to("sim:1")

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(self.first(x).to("sim:1"))
            return out

    model = Split()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(to=tmp_path / "run", strict=True, reference="fp64"):
        model(torch.ones(3, 4, device="sim:0")).sum().backward()
        optimizer.step()

    events = Run.open(tmp_path / "run").events().to_list()
    assert {event["device"] for event in events if event["site"] == "first"} == {"sim:0"}
    assert np.isfinite([event["l2"] for event in events]).all()


@pytest.mark.parametrize("options", [{}, {"histograms": True}, {"stacks": True}])
def test_summaries_take_no_kernels_and_no_memory_of_the_device(tmp_path: Path, options: dict[str, Any]) -> None:
    recorded: list[DeviceCounts] = []
    record(tmp_path / "run", lambda: train("sim", num_steps=3, counts=recorded), **options)
    bare: list[DeviceCounts] = []
    train("sim", num_steps=3, counts=bare)

    # Losses are kept and fetched together once a step: two kernels, whatever the number of tensors.
    assert recorded[-1].num_launches <= bare[-1].num_launches + 2, recorded[-1].where("launch")
    assert recorded[-1].peak_bytes() <= bare[-1].peak_bytes()
