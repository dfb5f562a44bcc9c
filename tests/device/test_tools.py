"""What else is done with a training, on an accelerator: replaying, skipping, comparing models, switches, bisecting."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor, nn

import roundoff
from roundoff.cli import command_line
from roundoff.compare.models.model_comparison import ModelComparison
from roundoff.runs import Run
from roundoff.sensitivity import Sensitivity
from roundoff.watch.watching import watching
from tests.device.simulated_device import faulty
from tests.device.test_record import Attention, conv_net, train


def overflowing(device: str, *, bad: int = 3) -> list[Tensor]:
    """Train six steps, one with a loss that overflows, and return the weights."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(6):
        x = torch.linspace(-1, 1, 12).view(3, 4).to(device)
        optimizer.zero_grad()
        out = model(x)
        (out * (1e30 if step == bad else 1.0)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def test_a_bad_step_is_skipped_as_on_the_cpu(tmp_path: Path) -> None:
    weights = {}
    for device in ("cpu", "sim"):
        with watching(to=tmp_path / device, on_anomaly="skip") as watch:
            weights[device] = overflowing(device)
        assert watch.num_undone == 1
    assert all(torch.equal(x, y) for x, y in zip(*weights.values(), strict=True))


@pytest.mark.parametrize("to", ["sim:0", "sim:1", "cpu"])
def test_a_saved_step_runs_again_where_its_model_is_built(tmp_path: Path, to: str) -> None:
    with watching(to=tmp_path / "run"):
        overflowing("sim:0")
    (tmp_path / "builder.py").write_text(f"""
import torch
def build():
    model = torch.nn.Linear(4, 2).to("{to}")
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)
""")
    builder = f"{tmp_path / 'builder.py'}:build"

    result = CliRunner().invoke(command_line, ["replay", str(tmp_path / "run"), "--builder", builder, "--json"])

    answer = json.loads(result.stdout)
    assert answer["is_same_place"], result.output
    if to == "sim:0":
        assert answer["num_same"] == answer["num_compared"] > 10


def test_models_on_two_devices_are_compared() -> None:
    torch.manual_seed(0)
    reference = conv_net()
    candidate = copy.deepcopy(reference).to("sim")
    inputs, targets = torch.randn(16, 3, 6, 6), torch.randint(10, (16,))

    def compare() -> ModelComparison:
        return roundoff.compare_models(reference, candidate, inputs, targets=targets, loss=F.cross_entropy)

    assert compare().divergence is None
    with faulty("addmm", factor=1.01):
        found = compare().divergence
    assert found is not None
    assert (found.site, found.op) == ("5", "aten.addmm#0")


@pytest.mark.parametrize("implementation", ["cpu", "fp64"])
def test_a_faulty_op_is_replaced(implementation: str) -> None:
    with faulty("convolution", factor=1.05, channel=2):
        bad = train("sim", optimizer=torch.optim.SGD)
        with roundoff.switching({"substitute": implementation}):
            good = train("sim", optimizer=torch.optim.SGD)

    right = train("sim", optimizer=torch.optim.SGD)
    assert not all(torch.allclose(x, y, rtol=1e-4) for x, y in zip(bad, right, strict=True))
    assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-6) for x, y in zip(good, right, strict=True))


def test_one_switch_makes_two_devices_draw_the_same_numbers() -> None:
    results = []
    for device in ("cpu", "sim"):
        with roundoff.switching({"randomness": "0"}):
            results.append(train(device, Attention, optimizer=torch.optim.SGD))
    assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-6) for x, y in zip(*results, strict=True))


def check_sensitivity() -> None:
    """Measure on both devices; the effects must be the same."""
    found: list[Sensitivity] = []
    for device in ("cpu", "sim"):
        torch.manual_seed(0)
        model = conv_net()
        x, y = torch.randn(16, 3, 6, 6).to(device), torch.randint(10, (16,)).to(device)
        model.to(device)
        with roundoff.measuring_sensitivity(step=0, formats=("fp16", "bf16")) as measured:
            F.cross_entropy(model(x), y).backward()
        found.append(measured.sensitivity)
    for name in ("fp16", "bf16"):
        assert found[0].loss_change(name) == pytest.approx(found[1].loss_change(name), rel=0.05)


def test_sensitivity_is_that_of_the_cpu() -> None:
    check_sensitivity()


@pytest.mark.usefixtures("without_fp64")
def test_sensitivity_needs_no_fp64() -> None:
    check_sensitivity()


def test_the_reference_trainer_trains_there(tmp_path: Path) -> None:
    losses = []
    for device in ("cpu", "sim"):
        options = ["--data", "digits", "--limit", "200", "--epochs", "1", "--device", device]
        result = CliRunner().invoke(command_line, ["train", *options, "--runs", str(tmp_path), "--name", device])
        assert result.exit_code == 0, result.output
        losses.append([line.loss for line in Run.open(tmp_path / device).metrics()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from tests.device import simulated_device

simulated_device.load()
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10)).to("sim")
x, y = torch.randn(16, 3, 6, 6).to("sim"), torch.randint(10, (16,)).to("sim")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with simulated_device.faulty("{kernel}", **{fault}):
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "fault", "implementation", "found"),
    [
        ("convolution", {"factor": 1.01}, "cpu", ["0:forward:aten.convolution"]),
        ("convolution", {"factor": 1.05, "channel": 3}, "fp64", ["0:forward:aten.convolution"]),
        ("convolution_backward", {"factor": 1.6}, "cpu", ["0:backward:aten.convolution_backward"]),  # it learns faster
        ("convolution_backward", {"factor": 0.2, "channel": 1}, "fp64", ["0:backward:aten.convolution_backward"]),
        ("mm", {"factor": 1.5, "shape": (16, 128)}, "cpu", ["3:backward:aten.mm"]),
        ("addmm", {"factor": 1.2, "varies": True}, "fp64", ["3:forward:aten.addmm"]),
        ("addmm", {"factor": 1.01, "shape": (16, 10)}, "cpu", []),
        ("addmm", {"factor": 1.001}, "fp64", []),
    ],
)
def test_a_planted_fault_is_found_by_bisecting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    fault: dict[str, Any],
    implementation: str,
    found: list[str],
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(kernel=kernel, fault=fault))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    options = ["--switch", f"substitute={implementation}", "--seeds", "1", "--runs", str(tmp_path), "--json"]

    result = CliRunner().invoke(command_line, ["bisect", *options, str(tmp_path / "train.py")])

    assert result.exit_code == bool(found), result.output
    answer = json.loads(result.stdout)
    assert answer["found"] == found
    if not found:
        assert any("3:forward:aten.addmm differs by" in note and "too small" in note for note in answer["notes"])
