"""The source line of an op is the user's: where it was called, also for its backward."""

from __future__ import annotations

import copy
import inspect
import site
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from roundoff.record.source_lines import Sources, is_users_file, shown_path
from roundoff.runs import Run

X = torch.randn(4, 3)
HERE = shown_path(__file__)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4)))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stack(x)  # line of the stack
        x = torch.relu(x)  # line of relu
        return self.head(x)  # line of the head


def line_of(marker: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    (number,) = (n for n, text in enumerate(lines, 1) if text.endswith(f"# line of {marker}"))
    return f"{HERE}:{number}"


def sources(run: Run, op: str, **wanted: str) -> set[str | None]:
    return {e.source for e in run.iter_events(op=op, **wanted)}


@pytest.fixture
def run(record: Callable[..., Run]) -> Run:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())

    def training() -> None:
        loss = F.mse_loss(model(X), torch.zeros(4, 2))  # line of the loss
        loss.backward()  # line of backward
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # line of clip
        optimizer.step()  # line of step

    return record(training, stacks=True)


def test_a_forward_op_has_the_line_that_called_it(run):
    assert sources(run, "aten.relu") == {line_of("relu")}
    assert sources(run, "aten.mse_loss") == {line_of("the loss")}
    assert sources(run, "aten.addmm", site="head") == {line_of("the head")}


def test_ops_inside_modules_of_torch_have_the_line_that_called_the_outermost_one(run):
    assert sources(run, "aten.addmm", site="stack*") == {line_of("the stack")}
    assert sources(run, "aten.tanh") == {line_of("the stack")}


def test_a_backward_op_has_the_line_of_its_forward_op(run):
    assert sources(run, "aten.threshold_backward") == {line_of("relu")}
    assert sources(run, "aten.mse_loss_backward") == {line_of("the loss")}
    assert sources(run, "aten.tanh_backward") == {line_of("the stack")}
    assert sources(run, "aten.mm", site="head", phase="backward") == {line_of("the head")}
    assert sources(run, "aten.mm", site="stack.0", phase="backward") == {line_of("the stack")}


def test_optimizer_ops_have_the_line_of_the_loop(run):
    lines = {e.source for e in run.iter_events(phase="optimizer") if "." in e.op}
    assert lines == {line_of("clip"), line_of("step")}
    assert sources(run, "aten.addcdiv_") == {line_of("step")}


def test_tensors_that_no_op_computes_have_no_line(run):
    assert sources(run, "parameter") | sources(run, "gradient") | sources(run, "input") == {None}


def test_without_stacks_there_are_no_lines(record):
    model = Net()
    assert {e.source for e in record(lambda: model(X).sum().backward()).iter_events()} == {None}


def test_recomputed_ops_have_the_line_of_the_module(record):
    model = Net()

    def training() -> None:
        checkpoint(model, X.clone().requires_grad_(), use_reentrant=False).sum().backward()

    run = record(training, stacks=True)
    assert sources(run, "aten.relu") == {line_of("relu")}
    assert sources(run, "aten.threshold_backward") == {line_of("relu")}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2  # line of the forward of a function

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0] * 2


def test_ops_of_a_custom_function_have_their_own_line(record):
    model = nn.Linear(3, 2)
    run = record(lambda: Doubled.apply(model(X)).sum().backward(), stacks=True)
    assert sources(run, "aten.mul", phase="forward") == {line_of("the forward of a function")}


def test_a_decorated_function_has_its_own_line(record):
    model = nn.Linear(3, 2)

    @torch.no_grad()
    def evaluate() -> Tensor:
        return model(X).exp()  # line of the evaluation

    def training() -> None:
        model(X).sum().backward()
        evaluate()

    assert sources(record(training, stacks=True), "aten.exp") == {line_of("the evaluation")}


def test_ops_inside_the_standard_library_have_the_line_that_called_it(record):
    model = nn.Linear(3, 2)

    def training() -> None:
        copy.deepcopy(model)  # line of the copy
        model(X).sum().backward()

    assert sources(record(training, stacks=True), "aten.clone") == {line_of("the copy")}


def test_the_same_line_has_one_number():
    found = Sources()
    numbers = {found.here() for _ in range(3)}  # line of here
    assert numbers == {0}
    assert found.lines == [line_of("here")]


def test_here_is_the_innermost_line_of_the_user():
    found = Sources()

    def inner() -> int:
        return found.here()

    assert found.lines == []
    line = inspect.currentframe().f_lineno - 3
    inner()
    assert found.lines == [f"{HERE}:{line}"]


def test_a_path_is_shown_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown_path(str(tmp_path / "models/net.py")) == "models/net.py"
    assert shown_path("net.py") == "net.py"


def test_a_path_of_a_package_is_shown_from_where_packages_are():
    assert shown_path(f"{site.getsitepackages()[0]}/transformers/models/gpt2.py") == "transformers/models/gpt2.py"
    assert shown_path(sys.modules["json"].__file__) == "json/__init__.py"


def test_a_path_elsewhere_is_shown_by_its_last_two_parts():
    assert shown_path("/somewhere/else/project/net.py") == "project/net.py"


@pytest.mark.parametrize("name", ["<stdin>", "<string>", "<ipython-input-3-abc>"])
def test_code_without_a_file_keeps_its_name(name):
    assert shown_path(name) == name


def test_the_thread_that_says_why_we_wait_is_ours() -> None:
    import roundoff.progress

    assert not is_users_file(roundoff.progress.__file__)
