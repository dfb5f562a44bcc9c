"""Steps that were saved by a watch, run again from their files with models that were built anew."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.errors import ReplayError
from roundoff.replay.saved.builder import Built
from roundoff.replay.saved.rerun import rerun_step
from roundoff.runs import Run
from roundoff.watch.watching import watching

BAD_STEP = 2


class Net(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.a = nn.Linear(8, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.2)
        self.b = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.drop(torch.relu(self.norm(self.a(torch.sqrt(x + 10))))))


class Product(nn.Module):
    """Overflows in fp16 where the batch is large."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.b = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b((h @ h.t()) @ h)


def with_optimizer(
    make: Callable[[], nn.Module] = Net, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
) -> Built:
    model = make()
    return Built(models=(model,), optimizers=(optimizer(model.parameters(), lr=1e-2),))


def batch(step: int) -> tuple[Tensor, Tensor]:
    x, y = torch.randn(4, 8), torch.randint(0, 4, (4,))
    if step == BAD_STEP:
        x[1, 2] = -1000.0
    return x, y


def plain(built: Built) -> None:
    [model], [optimizer] = built.models, built.optimizers
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0, 0.5]), label_smoothing=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for step in range(4):
        x, y = batch(step)
        loss = criterion(model(x), y) + 0.01 * sum(p.pow(2).sum() for p in model.parameters())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def accumulated(built: Built) -> None:
    """Two backwards to a step, clipping by value, gradients that are cleared at the end."""
    [model], [optimizer] = built.models, built.optimizers
    for step in range(4):
        for _ in range(2):
            x, y = batch(step)
            (F.cross_entropy(model(x), y) / 2).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


def never_cleared(built: Built) -> None:
    """Gradients that grow from step to step: a step starts from those of the last one."""
    [model], [optimizer] = built.models, built.optimizers
    for step in range(4):
        x, y = batch(step)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def in_a_closure(built: Built) -> None:
    [model], [optimizer] = built.models, built.optimizers
    for step in range(4):
        x, y = batch(step)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


def under_autocast(built: Built) -> None:
    [model], [optimizer] = built.models, built.optimizers
    for step in range(4):
        x, y = torch.randn(4, 8) * (300 if step == BAD_STEP else 1), torch.randint(0, 4, (4,))
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def with_a_scaler(built: Built) -> None:
    """A scaled loss, and a step that the scaler skips."""
    [model], [optimizer] = built.models, built.optimizers
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for step in range(4):
        x, y = torch.randn(4, 8) * (300 if step == BAD_STEP else 1), torch.randint(0, 4, (4,))
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def two_models(built: Built) -> None:
    """An encoder and a head with an optimizer each, the encoder's norm in eval mode."""
    (encoder, head), (one, two) = built.models, built.optimizers
    encoder.norm.eval()
    for step in range(4):
        x, y = batch(step)
        loss = F.cross_entropy(head(F.dropout(encoder(x), 0.1)), y)
        one.zero_grad()
        two.zero_grad()
        loss.backward()
        one.step()
        two.step()


def encoder_and_head() -> Built:
    encoder, head = Net(), nn.Linear(4, 4)
    return Built(
        models=(encoder, head),
        optimizers=(torch.optim.Adam(encoder.parameters(), 1e-2), torch.optim.SGD(head.parameters(), 1e-2, 0.9)),
    )


TRAININGS: dict[str, tuple[Callable[[Built], None], Callable[[], Built]]] = {
    "plain": (plain, with_optimizer),
    "accumulated": (accumulated, with_optimizer),
    "never cleared": (never_cleared, with_optimizer),
    "in a closure": (in_a_closure, lambda: with_optimizer(optimizer=torch.optim.SGD)),
    "under autocast": (under_autocast, lambda: with_optimizer(Product)),
    "with a scaler": (with_a_scaler, lambda: with_optimizer(Product)),
    "two models": (two_models, encoder_and_head),
}


def saved_by(train: Callable[[Built], None], build: Callable[[], Built], folder: Path) -> Run:
    """Train under watch and return the folder of the bad step."""
    torch.manual_seed(0)
    built = build()
    with watching(to=folder):
        train(built)
    run = Run.open(folder)
    return run.replay(run.replayed_steps[0])


@pytest.mark.parametrize("name", TRAININGS)
def test_a_saved_step_comes_out_bit_for_bit_in_models_that_were_built_anew(name: str, tmp_path: Path):
    train, build = TRAININGS[name]
    saved = saved_by(train, build, tmp_path / "run")
    assert saved.replay_info().is_identical
    torch.manual_seed(99)  # neither the builder's values nor the generators matter
    again = rerun_step(saved, build=build)
    assert (again.is_bad, again.is_same_place) == (True, True)
    assert again.num_same == again.num_compared > 20
    assert str(again.losses) == str(again.saved_losses)
    assert again.first_difference is None


@pytest.mark.parametrize("name", ["under autocast", "with a scaler"])
def test_another_recipe_says_whether_the_bad_value_goes_away(name: str, tmp_path: Path):
    train, build = TRAININGS[name]
    saved = saved_by(train, build, tmp_path / "run")
    wide, narrow = rerun_step(saved, build=build, recipe="fp32"), rerun_step(saved, build=build, recipe="amp-fp16")
    assert (wide.is_bad, wide.place) == (False, None)
    assert (narrow.is_bad, narrow.place.op, narrow.is_same_place) == (True, "aten.mm", True)


def test_a_recipe_finds_a_loss_scale_that_does_not_skip_the_step(tmp_path: Path):
    saved = saved_by(plain, with_optimizer, tmp_path / "run")

    class Steep(Net):
        """Finite everywhere, with gradients that fp16 cannot hold at the first loss scale."""

        def forward(self, x: Tensor) -> Tensor:
            return 100 * self.b(self.a(x.clamp(-10, 10)))

    again = rerun_step(saved, build=lambda: with_optimizer(Steep), recipe="O2")
    assert not again.is_bad
    assert 1 < again.loss_scale < 2**16


def test_without_an_optimizer_the_step_ends_after_backward(tmp_path: Path):
    saved = saved_by(accumulated, with_optimizer, tmp_path / "run")
    again = rerun_step(saved, build=lambda: Built(models=(Net(),)))
    assert (again.is_same_place, again.has_optimizer, again.num_same) == (True, False, again.num_compared)


def test_the_builders_loss_takes_the_place_of_what_the_loop_did(tmp_path: Path):
    saved = saved_by(plain, with_optimizer, tmp_path / "run")
    seen: list[tuple[int, ...]] = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.append((*x.shape, *y.shape))
        return F.cross_entropy(model(x), y)

    def build() -> Built:
        built = with_optimizer()
        return Built(models=built.models, optimizers=built.optimizers, loss=loss)

    again = rerun_step(saved, build=build)
    assert (again.is_bad, again.place.bad.op_name) == (True, "aten.sqrt#0")
    assert seen == [(4, 8, 4)]


def test_every_generator_is_where_it_was(tmp_path: Path):
    drawn: list[tuple[float, float, float]] = []

    class Drawing(Net):
        def forward(self, x: Tensor) -> Tensor:
            drawn.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
            return super().forward(x)

    saved = saved_by(plain, lambda: with_optimizer(Drawing), tmp_path / "run")
    first = drawn[-1] if len(drawn) == BAD_STEP + 1 else None
    drawn_in_step = set(drawn)
    drawn.clear()
    rerun_step(saved, build=lambda: with_optimizer(Drawing))
    assert first is None or drawn == [first]
    assert set(drawn) <= drawn_in_step


def test_a_step_whose_calls_were_not_saved_needs_the_loss(tmp_path: Path):
    class Odd(nn.Module):
        def forward(self, x: Tensor, kind: object) -> Tensor:
            return x

    odd = Odd()

    def train(built: Built) -> None:
        [model], [optimizer] = built.models, built.optimizers
        for step in range(4):
            x, y = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(odd(model(x), object()), y).backward()
            optimizer.step()

    saved = saved_by(train, with_optimizer, tmp_path / "run")
    with pytest.raises(ReplayError, match="an argument of a call is a object") as caught:
        rerun_step(saved, build=lambda: Built(models=(Net(), odd), optimizers=()))
    assert "let the builder return (model, optimizer, loss)" in str(caught.value)


def test_a_step_that_raises_when_it_is_run_again_says_what(tmp_path: Path):
    saved = saved_by(plain, with_optimizer, tmp_path / "run")

    class Broken(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("not today")

    with pytest.raises(ReplayError, match="The step raised ValueError when it was run again") as caught:
        rerun_step(saved, build=lambda: with_optimizer(Broken))
    assert "not today" in str(caught.value)


def test_what_was_recorded_can_be_kept(tmp_path: Path):
    saved = saved_by(plain, with_optimizer, tmp_path / "run")
    rerun_step(saved, build=with_optimizer, to=tmp_path / "again")
    assert Run.open(tmp_path / "again").steps == [BAD_STEP]
    with pytest.raises(ReplayError, match="already exists"):
        rerun_step(saved, build=with_optimizer, to=tmp_path / "again")


@pytest.mark.slow
def test_another_process_gets_the_same_bits(tmp_path: Path):
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Root(nn.Module):\n"
        "    def forward(self, x): return torch.sqrt(x + 10)\n"
        "def build():\n"
        "    model = nn.Sequential(Root(), nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 4))\n"
        "    return model, torch.optim.AdamW(model.parameters(), 1e-2)\n"
    )
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from model import build\n"
        "model, optimizer = build()\n"
        "for step in range(4):\n"
        "    x, y = torch.randn(4, 8), torch.randint(0, 4, (4,))\n"
        "    x[1, 2] = -1000.0 if step == 2 else 0.0\n"
        "    loss = torch.nn.functional.cross_entropy(model(x), y)\n"
        "    optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def roundoff(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "roundoff", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    assert roundoff("run", "train.py").returncode == 0
    answer = roundoff("replay", "runs/train-1", "--builder", "model.py:build")
    assert (answer.returncode, answer.stderr) == (1, "")
    assert "step 2: the bad value appears again, at the same op.\n" in answer.stdout
    assert "  origin     0 / aten.sqrt#0   forward   model.py:4\n" in answer.stdout
    assert "bit for bit\n" in answer.stdout
    assert "  same       all " in answer.stdout
