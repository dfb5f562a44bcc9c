"""Compiled models: recorded steps run eagerly and agree within the format; the others stay compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from roundoff.record import recording
from roundoff.runs import Run


def train(*, num_steps: int) -> tuple[list[float], nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
    model: Any = torch.compile(plain, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, plain, model


@pytest.mark.slow
def test_a_compiled_model_is_recorded_eagerly_and_agrees_within_its_format(tmp_path: Path) -> None:
    losses, plain, _ = train(num_steps=4)
    torch.compiler.reset()
    with recording(to=tmp_path / "run", steps=[1]):
        recorded_losses, recorded, _ = train(num_steps=4)
    assert torch.allclose(torch.tensor(losses), torch.tensor(recorded_losses), rtol=1e-5)
    for a, b in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)
    events = Run.open(tmp_path / "run").events().to_list()
    assert {e["step"] for e in events} == {1}
    assert {"0", "1", "2"} <= {e["site"] for e in events if e["phase"] == "forward"}
    assert {"0", "1", "2"} <= {e["site"] for e in events if e["phase"] == "backward"}
    torch.compiler.reset()


class Loop:
    """A training loop of which some part is compiled."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.x, self.y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        self.forward: Callable[[], Tensor] = lambda: F.cross_entropy(self.model(self.x), self.y)
        self.update: Callable[[], None] = lambda: self.optimizer.step()

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.forward()
        loss.backward()
        self.update()
        return loss.item()


def compile_the_loss(loop: Loop) -> None:
    loop.forward = torch.compile(loop.forward, backend="aot_eager")


def compile_the_model_in_place(loop: Loop) -> None:
    loop.model.compile(backend="aot_eager")


def compile_the_optimizer(loop: Loop) -> None:
    loop.update = torch.compile(loop.update, backend="aot_eager")


def compile_the_whole_step(loop: Loop) -> None:
    loop.step = torch.compile(loop.step, backend="aot_eager")


def compile_a_function_of_tensors(loop: Loop) -> None:
    weight = torch.randn(6, 3, requires_grad=True)
    loop.optimizer = torch.optim.SGD([weight], lr=0.1)
    loop.forward = torch.compile(lambda: F.cross_entropy(loop.x @ weight, loop.y), backend="aot_eager")


COMPILED = [
    compile_the_loss, compile_the_model_in_place, compile_the_optimizer, compile_the_whole_step,
    compile_a_function_of_tensors,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize("steps", [None, [0], [1], [2, 3]], ids=str)
@pytest.mark.parametrize("part", COMPILED)
def test_steps_of_loops_with_compiled_parts_are_whole(part: Callable[[Loop], None], steps: list[int] | None,
                                                      tmp_path: Path) -> None:  # fmt: skip
    torch.compiler.reset()
    eager = Loop()
    if part is compile_a_function_of_tensors:
        part(eager)
        eager.forward = torch.compiler.disable(eager.forward)
    expected = [eager.step() for _ in range(5)]
    torch.compiler.reset()
    loop = Loop()
    part(loop)
    with recording(to=tmp_path / "run", steps=steps):
        losses = [loop.step() for _ in range(5)]
    assert losses == pytest.approx(expected, rel=1e-4)
    assert not _get_current_dispatch_mode_stack()
    torch.ones(1) * 2  # torch does not look for a mode that is gone
    run = Run.open(tmp_path / "run")
    assert [m.step for m in run.metrics()] == [0, 1, 2, 3, 4]
    assert run.steps == (list(range(5)) if steps is None else steps)
    for step in run.steps:
        events = [e for e in run.iter_events(step=step) if "." in e.op]
        assert {e.phase for e in events} == {"forward", "backward", "optimizer"}
        if part is not compile_a_function_of_tensors:
            assert {"0", "1", "2"} <= {e.site for e in events if e.phase == "forward"}
            assert {"0", "1", "2"} <= {e.site for e in events if e.phase == "backward"}
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_what_is_compiled_inside_the_block_is_recorded_too(tmp_path: Path) -> None:
    torch.compiler.reset()
    with recording(to=tmp_path / "run", steps=[0, 2]):
        loop = Loop()
        compile_the_loss(loop)
        for _ in range(4):
            loop.step()
    run = Run.open(tmp_path / "run")
    for step in (0, 2):
        assert {"0", "1", "2", "<loop>"} <= {e.site for e in run.iter_events(step=step, phase="forward")}
    torch.compiler.reset()
