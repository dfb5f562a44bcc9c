"""The simulated device computes as the CPU does, and is as unforgiving as an accelerator."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.device.simulated_device import Execution, behaving, counting, faulty
from tests.forked import run_forked

EXECUTIONS: tuple[Execution, ...] = ("at once", "on a worker", "when waited for")


def train(device: str, *, num_steps: int = 3, dropout: float = 0.0) -> list[Tensor]:
    """Train a small network on fixed data; return the losses and the weights, on the device."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(288, 10),
    )
    inputs, targets = torch.randn(16, 3, 6, 6).to(device), torch.randint(10, (16,)).to(device)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("device", ["sim:0", "sim:1"])
def test_a_training_gives_the_numbers_of_the_cpu(device: str, execution: Execution) -> None:
    with behaving(execution=execution):
        for there, here in zip(train(device), train("cpu"), strict=True):
            assert str(there.device) == device
            assert torch.equal(there.cpu(), here)


def test_the_host_cannot_read_its_memory() -> None:
    x = torch.ones(4, device="sim")

    def read() -> bytes:
        faulthandler.disable()
        return ctypes.string_at(x.data_ptr(), 4)

    assert run_forked(read).status == -signal.SIGSEGV
    assert x.sum().item() == 4


def test_a_forked_child_cannot_use_it() -> None:
    torch.ones(4, device="sim")

    assert "forked" in str(run_forked(lambda: torch.ones(4, device="sim")).value)


def test_its_own_generators_repeat_what_they_gave() -> None:
    host = torch.get_rng_state()
    torch.sim.manual_seed(3)  # type: ignore[attr-defined]
    state = torch.sim.get_rng_state()  # type: ignore[attr-defined]
    drawn = [torch.randn(5, device="sim"), nn.functional.dropout(torch.ones(50, device="sim"), 0.5)]
    torch.sim.set_rng_state(state)  # type: ignore[attr-defined]
    again = [torch.randn(5, device="sim"), nn.functional.dropout(torch.ones(50, device="sim"), 0.5)]

    assert all(torch.equal(x, y) for x, y in zip(drawn, again, strict=True))
    assert torch.equal(torch.get_rng_state(), host)
    generator = torch.Generator("sim:1").manual_seed(3)
    assert torch.equal(torch.randn(5, device="sim:1", generator=generator).cpu(), drawn[0].cpu())
    assert not torch.equal(torch.randn(5, device="sim"), drawn[0])


def test_autocast_and_loss_scaling() -> None:
    model = nn.Linear(4, 3).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("sim", init_scale=8.0)
    with torch.autocast("sim", torch.bfloat16):
        output = model(torch.ones(2, 4, device="sim"))
        loss = nn.functional.mse_loss(output, torch.zeros_like(output))
    assert (output.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    before = model.weight.detach().clone()
    scaler.scale(loss * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()

    assert scaler.get_scale() == 4.0
    assert torch.equal(model.weight, before)


def test_what_is_read_before_it_has_arrived_is_wrong() -> None:
    host = torch.zeros(3).pin_memory()
    event = torch.Event("sim")
    with behaving(execution="when waited for"):
        host.copy_(torch.ones(3, device="sim") * 2, non_blocking=True)
        event.record()
        assert not event.query()
        assert host.tolist() == [0, 0, 0]
        event.synchronize()
        assert event.query()
        assert host.tolist() == [2, 2, 2]


def test_what_a_kernel_raises_arrives_at_the_next_wait() -> None:
    with behaving(execution="on a worker"):
        nn.functional.embedding(torch.tensor([7]).to("sim"), torch.ones(2, 2, device="sim"))
        with pytest.raises(IndexError):
            torch.accelerator.synchronize()


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device="sim:0") + torch.ones(2, device="sim:1")
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device="sim:0") + torch.ones(2)


def test_there_may_be_no_fp64() -> None:
    x = torch.ones(2, device="sim")
    with behaving(fp64=False), pytest.raises(TypeError, match="no Double"):
        x.double()
    assert x.double().dtype is torch.float64


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_waits_transfers_launches_and_memory_are_counted(execution: Execution) -> None:
    x = torch.ones(1000, device="sim")
    with behaving(execution=execution), counting() as counts:
        y = x * 2
        del y
        torch._foreach_add_([x, x], 1.0)
        x[:10].cpu()
        x[0].item()
        x.nonzero()

    assert counts.waits == ["copy to host", "item", "nonzero"]
    assert [event.name for event in counts.of("launch")] == ["mul", "_foreach_add", "nonzero"]
    assert [event.num_bytes for event in counts.of("to_host")] == [40]
    assert counts.peak_bytes() == 8000  # what nonzero returns
    assert counts.peak_bytes(1) == 0
    assert "test_simulated_device.py" in counts.of("wait")[0].stack[-1]


def test_a_pinned_copy_waits_for_nothing() -> None:
    pinned = torch.zeros(3).pin_memory()
    assert pinned.is_pinned()
    assert not torch.zeros(3).is_pinned()
    with counting() as counts:
        pinned.to("sim", non_blocking=True)
        pinned.copy_(torch.ones(3, device="sim"), non_blocking=True)
    assert counts.waits == []


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_kernels_can_be_made_faulty(execution: Execution) -> None:
    x, weight = torch.ones(2, 3, device="sim"), torch.ones(3, 4, device="sim")
    with behaving(execution=execution):
        with faulty("mm", factor=1.01):
            assert (x @ weight).tolist() == [[pytest.approx(3.03)] * 4] * 2
        with faulty("mm", factor=1.05, channel=2):
            assert (x @ weight).tolist() == [[3, 3, pytest.approx(3.15), 3]] * 2
        with faulty("mm", factor=2, shape=(1, 4)):
            assert (x @ weight).tolist() == [[3] * 4] * 2
            assert (x[:1] @ weight).tolist() == [[6] * 4]
        with faulty("mm", factor=1.01, varies=True):
            assert not torch.equal(x @ weight, x @ weight)
        assert (x @ weight).tolist() == [[3] * 4] * 2


def test_autograd_runs_on_a_thread_of_the_device() -> None:
    threads: list[int] = []

    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            threads.append(threading.get_ident())
            return grads[0]

    for device in ("sim:0", "sim:1", "cpu"):
        x = torch.ones(2, device=device, requires_grad=True)
        out: Tensor = Noting.apply(x)
        out.sum().backward()

    assert threads[2] == threading.get_ident()
    assert len(set(threads)) == 3


def test_streams_and_events_are_there() -> None:
    stream = torch.Stream("sim:0")
    with behaving(execution="when waited for"):
        before = torch.accelerator.current_stream()
        with stream:
            assert torch.accelerator.current_stream() == stream
            x = torch.ones(3, device="sim") + 1
            event = stream.record_event()
        assert torch.accelerator.current_stream() == before
        before.wait_event(event)
        stream.synchronize()
        assert event.query()
        assert x.tolist() == [2, 2, 2]


@pytest.mark.parametrize("is_on_device", [False, True])
def test_without_a_compiler_everything_is_skipped_with_the_reason(tmp_path: Path, is_on_device: bool) -> None:
    environment = {**os.environ, "CXX": "no-such-compiler", "PATH": str(tmp_path)}
    environment.pop("ROUNDOFF_TESTS_ON_DEVICE")
    if is_on_device:  # as `make test-device` does it
        environment["ROUNDOFF_TESTS_ON_DEVICE"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/device/test_recipes.py"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout
    assert "no C++ compiler to build the simulated device with" in done.stdout
    assert "passed" not in done.stdout
