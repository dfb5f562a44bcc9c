"""What the user's code reaches is put back as it was after a block."""

from __future__ import annotations

import io
import random
import sys
import threading
from collections import deque
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from roundoff.replay import python_state
from roundoff.replay.python_state import own_generators, restoring_python_state

runs_beside = python_state.other_threads_run_users_code
SEEN: dict[str, Any] = {"count": 0, "nested": {"losses": []}}


@pytest.fixture(autouse=True)
def _only_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that another test has left running must not decide what is restored here, nor what a test has left."""
    monkeypatch.setattr(python_state, "other_threads_run_users_code", lambda: False)
    SEEN.update(count=0, nested={"losses": []})


class Meter:
    def __init__(self) -> None:
        self.values: list[float] = []
        self.total = 0.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.meter = Meter()
        self.queue: deque[int] = deque([1, 2])
        self.bank = torch.zeros(3)
        self.table = np.zeros(3)
        self.drawn = torch.Generator().manual_seed(1)
        self.legacy = np.random.RandomState(2)
        self.modern = np.random.default_rng(3)
        self.plain = random.Random(4)

    def disturb(self) -> None:
        SEEN["count"] += 1
        SEEN["nested"]["losses"].append(1.0)
        SEEN["new"] = True
        self.meter.values.append(2.0)
        self.meter.total += 2.0
        self.queue.append(3)
        self.bank[1] = 5
        self.table[1] = 5
        self.draw()

    def draw(self) -> tuple[float, ...]:
        first = torch.rand(1, generator=self.drawn).item()
        return first, self.legacy.rand(), self.modern.random(), self.plain.random()


def nothing(_: Tensor) -> bool:
    return False


def test_containers_objects_arrays_and_generators_are_put_back() -> None:
    model, twin = Net(), Net()
    version = model.bank._version
    with restoring_python_state(model.modules(), but=nothing):
        model.disturb()
    assert SEEN == {"count": 0, "nested": {"losses": []}}
    assert (model.meter.values, model.meter.total) == ([], 0.0)
    assert list(model.queue) == [1, 2]
    assert not model.bank.any()
    assert model.bank._version == version
    assert not model.table.any()
    assert model.draw() == twin.draw()


def test_other_files_with_much_in_them_take_nothing_from_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    large = ModuleType("large")
    large.__file__ = __file__
    vars(large).update({f"table{number}": [[] for _ in range(100)] for number in range(200)})
    monkeypatch.setattr(sys, "modules", {"large": large, **sys.modules})
    model = Net()
    with restoring_python_state(model.modules(), but=nothing):
        model.disturb()
    assert SEEN == {"count": 0, "nested": {"losses": []}}
    assert model.meter.values == []


def test_what_a_hook_holds_is_put_back_also_after_an_exception() -> None:
    outputs: list[Tensor] = []
    model = Net()
    model.linear.register_forward_hook(lambda module, args, output: outputs.append(output))
    try:
        with restoring_python_state(model.modules(), but=nothing):
            model.linear(torch.ones(1, 2))
            raise ValueError
    except ValueError:
        pass
    assert outputs == []


def test_tensors_that_are_looked_after_elsewhere_are_left_alone() -> None:
    model = Net()
    with restoring_python_state(model.modules(), but=lambda x: x is model.bank):
        model.bank[1] = 5
    assert model.bank[1] == 5


def test_generators_of_a_model_are_found() -> None:
    model = Net()
    found = own_generators(model.modules())
    for generator in (model.drawn, model.legacy, model.modern, model.plain):
        assert any(generator is one for one in found)


def test_the_thread_of_a_progress_bar_is_no_code_of_the_users() -> None:
    before = threading.enumerate()
    with Progress(console=Console(file=io.StringIO(), force_terminal=True)) as progress:
        progress.add_task("training")
        (thread,) = [thread for thread in threading.enumerate() if thread not in before]
        assert thread.ident is not None
        assert not python_state._runs_users_code(sys._current_frames()[thread.ident])


def test_a_thread_of_the_users_is() -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=lambda: go_on.wait(30))
    thread.start()
    assert runs_beside()
    go_on.set()
    thread.join(timeout=300)
