"""Planted NaN and infinity are traced to the op that made them, with how far they spread; the rest is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.diagnose import OriginPlace, find_origin
from tests.diagnose.planted import BAD_STEP, mlp_with, train


def origin_of(function: Callable[[Tensor], Tensor], folder: Path, **how: object) -> OriginPlace | None:
    return find_origin(train(mlp_with(function), folder, **how), step=BAD_STEP)


FUTURE = torch.ones(6, 6, dtype=torch.bool).triu(1)


def masked_attention(x: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((x @ x.T).masked_fill(mask, -torch.inf), dim=-1) @ x


@pytest.mark.parametrize(
    ("function", "dtype", "phase", "op"),
    [
        (lambda x: x + torch.log(x.relu() - 1), torch.float32, "forward", "aten.log#0"),
        (lambda x: x / (x - x), torch.float32, "forward", "aten.div#0"),
        (lambda x: (x * 300) @ (x * 300).T @ x, torch.float16, "forward", "aten.mm#0"),
        (lambda x: torch.where(x > 0, torch.sqrt(x), 0.0), torch.float32, "forward", "aten.sqrt#0"),
        (lambda x: torch.where(x > 0, torch.sqrt(x * (x > 0)), x), torch.float32, "backward", "aten.div#0"),
        (lambda x: x / x.masked_fill(FUTURE[:, :1], 0).mul(0).norm(), torch.float32, "forward", "aten.div#0"),
        (lambda x: masked_attention(x, FUTURE | (torch.arange(6) == 3)[:, None]), torch.float32, "forward",
         "aten._softmax#0"),
        (lambda x: torch.cat([(x.T * 1e4 * 1e4).chunk(2)[0].T, x[:, 4:]], 1), torch.float16, "forward", "aten.mul#1"),
    ],
    ids=["log", "0/0", "product", "branch not taken", "backward of sqrt", "norm of zeros", "masked row", "views"],
)  # fmt: skip
def test_names_the_op_that_made_the_first_bad_value(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype, phase: str, op: str, tmp_path: Path
) -> None:
    place = origin_of(function, tmp_path / "run", dtype=dtype)
    assert place is not None
    assert (place.kind, place.phase, place.site, place.bad.op_name) == ("op", phase, "1.1", op)
    assert place.bad.source is not None
    assert place.bad.source.startswith("tests/diagnose/nonfinite/test_origin.py:")
    assert place.is_masked == (op == "aten._softmax#0")
    assert place.batch_size == 6


def dead_branch(x: Tensor) -> Tensor:
    """A NaN that is thrown away, then an infinity that is not."""
    discarded = torch.where(x.detach() > 9, torch.sqrt(x.detach() - 5), x)
    return discarded * torch.exp(x.abs() * 1000)


def test_an_earlier_bad_value_that_reaches_nothing_is_not_the_origin(tmp_path: Path) -> None:
    place = origin_of(dead_branch, tmp_path / "run")
    assert place is not None
    assert place.bad.op_name == "aten.exp#0"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: masked_attention(x, FUTURE),
        lambda x: x + torch.log((x > 9).float()).exp(),
        lambda x: (x.relu() * x.relu()).sqrt().detach() + x,
        lambda x: torch.where(x > 9, torch.sqrt(x.detach() - 5), x),
        lambda x: torch.where(x > 0, torch.sqrt(x.relu()), x),
        lambda x: x + torch.empty_like(x).mul_(torch.nan).mul(0).nan_to_num(),
        lambda x: x / (x.abs() * 1e30).square().sum() + x,
    ],
    ids=[
        "healthy",
        "mask",
        "log of a mask",
        "detached",
        "discarded",
        "masked by the backward of ReLU",
        "garbage",
        "divided away",
    ],
)
def test_is_silent_where_nothing_bad_reaches_loss_gradients_or_weights(
    function: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    assert origin_of(function, tmp_path / "run") is None


def test_is_silent_on_a_nan_gradient_that_relu_masks(tmp_path: Path) -> None:
    """The gradient of sqrt(h * h) at 0 is NaN, and the backward of ReLU throws it away."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), mlp_with(lambda x: (x * x).sqrt())[1][1], nn.Linear(8, 3))
    assert find_origin(train(model, tmp_path / "run"), step=BAD_STEP) is None


def test_counts_what_a_bad_value_reaches(tmp_path: Path) -> None:
    place = origin_of(lambda x: torch.where(x > 0, torch.sqrt(x), 0.0), tmp_path / "run")
    assert place is not None
    reached = place.liveness
    assert not reached.reaches_loss
    assert (reached.num_bad_gradients, reached.num_gradients) == (2, 4)  # the last layer is after the branch
    assert (reached.num_bad_weights, reached.num_weights) == (2, 4)


def test_a_bad_value_in_the_loss_reaches_everything(tmp_path: Path) -> None:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return -torch.log(torch.softmax(logits * 1e4, -1))[torch.arange(6), labels].mean()

    place = find_origin(train(mlp_with(lambda x: x), tmp_path / "run", loss=loss), step=0)
    assert place is not None
    assert (place.site, place.bad.op_name, place.phase) == ("<loop>", "aten.log#0", "forward")
    assert place.liveness.reaches_loss
    assert place.liveness.num_bad_gradients == 4


def test_a_nan_in_the_batch_is_an_input(tmp_path: Path) -> None:
    def spoilt(x: Tensor, step: int) -> Tensor:
        return x.masked_fill(torch.arange(24).reshape(6, 4) == 17, torch.nan) if step == BAD_STEP else x

    batches = [spoilt(torch.ones(6, 4), step) for step in range(4)]
    place = find_origin(train(mlp_with(F.relu), tmp_path / "run", batch=lambda x, step: batches[step]), step=BAD_STEP)
    assert place is not None
    assert (place.kind, place.site, place.op) == ("input", "<model>", "input")
    assert place.liveness.reaches_loss


def test_weights_that_were_bad_before_the_step_send_to_an_earlier_one(tmp_path: Path) -> None:
    run = train(mlp_with(lambda x: torch.where(x > 0, torch.sqrt(x), 0.0)), tmp_path / "run")
    place = find_origin(run, step=BAD_STEP + 1)
    assert place is not None
    assert (place.kind, place.bad.parameter) == ("parameter", "0.weight")


def test_an_update_that_is_not_finite_belongs_to_the_optimizer(tmp_path: Path) -> None:
    """In fp16 the eps of Adam rounds to 0, and so does the square of a small gradient."""
    run = train(
        mlp_with(lambda x: x), tmp_path / "run", dtype=torch.float16, optimizer=torch.optim.Adam,
        loss=lambda logits, labels: F.cross_entropy(logits.float(), labels) * 1e-4,
    )  # fmt: skip
    place = find_origin(run, step=0)
    assert place is not None
    assert (place.phase, place.bad.op_name) == ("optimizer", "aten.addcdiv_#0")
    assert not place.liveness.reaches_loss
    assert place.liveness.num_bad_gradients == 0
    assert place.liveness.num_bad_weights > 0


def test_without_recorded_inputs_the_first_bad_result_is_named(tmp_path: Path) -> None:
    place = origin_of(lambda x: x / (x - x), tmp_path / "run", inputs=False)
    assert place is not None
    assert (place.bad.op_name, place.has_inputs) == ("aten.div#0", False)
