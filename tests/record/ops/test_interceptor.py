"""A runner of ops gets the place of each: the same as in a recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundoff.record import recording
from roundoff.record.ops.interceptor import OpInterceptor, OpPlace
from roundoff.record.ops.op_table import OpInfo
from roundoff.runs import Run
from tests.record.trainings import PLAIN, Training


class Noting:
    """Runs ops as they are and notes their places."""

    def __init__(self) -> None:
        self.places: list[OpPlace] = []
        self.ended: list[tuple[int, int]] = []

    def run_op(self, place: OpPlace, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.places.append(place)
        return func(*args, **kwargs)

    def end_step(self, step: int) -> None:
        self.ended.append((step, len(self.places)))


def noted(training: Callable[[], Any]) -> Noting:
    noting = Noting()
    with OpInterceptor(noting, on_step_end=noting.end_step).running():
        training()
    return noting


@pytest.mark.parametrize(
    "name", ["resnet", "gpt", "checkpointed", "gan", "lbfgs", "accumulation_and_evaluation", "lstm"]
)
def test_the_places_are_those_of_a_recording(name: str, tmp_path: Path):
    training: Training = PLAIN[name]
    with recording(to=tmp_path / "run"):
        training()
    recorded = {
        (event["site"], event["phase"], event["op"])
        for event in Run.open(tmp_path / "run").events().to_list()
        if "." in event["op"] and "_foreach_" not in event["op"]  # of those, each tensor has a site of its own
    }
    seen = {tuple(place) for place in noted(training).places if "_foreach_" not in place.op}
    assert seen == recorded


def test_a_loop_of_plain_functions_has_phases_and_steps():
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)

    def train() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            (weight.exp() * 2).sum().backward()
            optimizer.step()

    noting = noted(train)
    assert [step for step, _ in noting.ended] == [0, 1, 2]
    phases = {place.op: place.phase for place in noting.places if place.op in ("aten.exp", "aten.add_", "aten.sum")}
    assert phases == {"aten.exp": "forward", "aten.sum": "forward", "aten.add_": "optimizer"}
    assert [place.phase for place in noting.places if place.op == "aten.exp"] == ["forward"] * 3


def test_an_exception_of_the_runner_reaches_the_training_and_all_hooks_are_removed():
    class Failing(Noting):
        def run_op(self, place: OpPlace, info: OpInfo, func: Any, args: Any, kwargs: Any) -> Any:
            raise ZeroDivisionError

    x = torch.ones(2)
    with pytest.raises(ZeroDivisionError), OpInterceptor(Failing()).running():
        x.exp()
    assert torch.equal(x.exp(), x.exp())
    assert torch._C._len_torch_dispatch_stack() == 0


def test_its_own_failure_is_raised_at_the_end_and_never_inside_the_training(monkeypatch: pytest.MonkeyPatch):
    following = OpInterceptor(Noting())
    monkeypatch.setattr(following.sites, "of_module", lambda module, parent: 1 / 0)
    finished = []

    def train() -> None:
        with following.running():
            F.mse_loss(nn.Linear(2, 2)(torch.ones(1, 2)), torch.ones(1, 2)).backward()
            finished.append(True)

    with pytest.raises(ZeroDivisionError):
        train()
    assert finished == [True]
