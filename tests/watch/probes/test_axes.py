"""Axes that are taken for others are found by what moves with a sample, a class or a place; the right ones are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.runs import ConfusedAxes
from roundoff.watch.probes.axes import axes, mixed_axis
from roundoff.watch.probes.batch_mixing import batch_mixing
from tests.replay.taped import taped


class Calls(nn.Module):
    """A linear layer, and then a function of its result."""

    def __init__(self, function: Callable[..., Tensor], *, width: int = 4) -> None:
        super().__init__()
        self.inner = nn.Linear(4, width)
        self.function = function
        self.register_buffer("code", torch.randn(50, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.inner(x), self.code)


def confused(
    folder: Path,
    function: Callable[..., Tensor],
    loss: Callable[[Tensor], Tensor] = torch.Tensor.sum,
    shape: tuple[int, ...] = (6, 5, 4),
) -> list[ConfusedAxes]:
    torch.manual_seed(0)
    model, x = Calls(function), torch.randn(shape)
    return list(axes(taped(folder, lambda: loss(model(x)).backward()).replayed_step()).found)


def test_a_reshape_keeps_an_axis_whose_numbers_stay_together() -> None:
    assert mixed_axis((8, 32, 30, 3), (8, 3, 32, 30)) == 1
    assert mixed_axis((6, 10, 32), (6, 4, 10, 8)) == 1
    assert mixed_axis((2, 6, 16), (6, 32)) == 1
    for made in ((6, 10, 4, 8), (60, 32), (6, 320), (6, 10, 32), (6, 5, 2, 32)):
        assert mixed_axis((6, 10, 32), made) is None


def test_rows_that_mix_classes_and_places_are_named(tmp_path: Path) -> None:
    places = torch.randint(0, 4, (30,))

    def wrong(scores: Tensor) -> Tensor:
        return F.cross_entropy(scores.reshape(-1, 4), places)

    def right(scores: Tensor) -> Tensor:
        return F.cross_entropy(scores.transpose(1, 2).reshape(-1, 4), places)

    (found,) = [each for each in confused(tmp_path / "wrong", _classes_second, wrong) if each.kind == "classes"]
    assert (found.function, found.given, found.made, found.axis) == ("cross_entropy", (6, 4, 5), (30, 4), 1)
    assert confused(tmp_path / "right", _classes_second, right) == []


def _classes_second(h: Tensor, _: Tensor) -> Tensor:
    return (h * 2).transpose(1, 2).contiguous() + 1


def test_scores_of_samples_against_each_other_may_be_transposed(tmp_path: Path) -> None:
    def loss(h: Tensor) -> Tensor:
        scores, same = h @ h.t() + 1, torch.arange(6)
        return F.cross_entropy(scores, same) + F.cross_entropy(scores.t(), same)

    assert confused(tmp_path / "run", lambda h, _: h, loss, shape=(6, 4)) == []


def test_a_reshape_counts_if_the_meaning_of_its_axes_is_used(tmp_path: Path) -> None:
    (found,) = confused(tmp_path / "used", lambda h, _: torch.softmax(h.reshape(6, 4, 5), -1))
    assert (found.kind, found.given, found.made, found.reader) == ("reshape", (6, 5, 4), (6, 4, 5), "softmax")
    assert confused(tmp_path / "elementwise", lambda h, _: h.reshape(6, 4, 5).relu() * 2) == []
    assert confused(tmp_path / "undone", lambda h, _: h.reshape(6, 4, 5).relu().reshape(6, 5, 4).softmax(-1)) == []


def test_weights_must_add_up_over_what_is_weighed(tmp_path: Path) -> None:
    (found,) = confused(tmp_path / "wrong", lambda h, _: torch.softmax(h @ h.mT, 1) @ h)
    assert (found.kind, found.axis, found.given, found.reader) == ("softmax", 1, (6, 5, 5), "matmul")
    (found,) = confused(tmp_path / "sum", lambda h, _: torch.einsum("nqk,nkd->nqd", torch.softmax(h @ h.mT, 1), h))
    assert (found.kind, found.axis) == ("softmax", 1)
    assert confused(tmp_path / "right", lambda h, _: torch.softmax(h @ h.mT, -1) @ h) == []
    assert confused(tmp_path / "few", lambda h, _: torch.softmax(h, -1).mT @ h) == []


def test_logarithms_must_be_those_of_the_classes(tmp_path: Path) -> None:
    classes = torch.tensor([0, 1, 2, 3, 0, 1])
    for axis, expected in ((0, [("softmax", 0, "nll_loss")]), (1, [])):
        found = confused(
            tmp_path / str(axis),
            lambda h, _: h,
            lambda scores, axis=axis: F.nll_loss(scores.log_softmax(axis), classes),
            shape=(6, 4),
        )
        assert [(each.kind, each.axis, each.reader) for each in found] == expected


def test_a_code_along_the_batch_is_named_with_both_shapes(tmp_path: Path) -> None:
    (found,) = confused(tmp_path / "batch", lambda h, code: h + code[: len(h)])
    assert (found.kind, found.given, found.made) == ("positions", (6, 5, 4), (6, 1, 4))
    assert confused(tmp_path / "places", lambda h, code: h + code[: h.shape[1], 0]) == []
    assert confused(tmp_path / "noise", lambda h, code: h + torch.randn_like(h)) == []


def test_a_code_along_the_batch_is_right_where_that_is_time(tmp_path: Path) -> None:
    assert confused(tmp_path / "run", lambda h, code: (h + code[: len(h)]).cumsum(0)) == []


def test_what_is_made_for_this_batch_alone_is_no_code(tmp_path: Path) -> None:
    own = torch.randn(6, 1, 4)
    assert confused(tmp_path / "run", lambda h, _: h + own) == []


def test_the_call_that_mixes_samples_is_named(tmp_path: Path) -> None:
    for name, function in (
        ("normalize", lambda h, _: F.normalize(h, dim=0)),
        ("softmax", lambda h, _: h.softmax(0)),
        ("norm", lambda h, _: h / h.norm(dim=0, keepdim=True)),
        ("roll", lambda h, _: h.roll(1, 0)),
    ):
        model, x = Calls(function), torch.randn(6, 4)
        step = taped(tmp_path / name, lambda: F.mse_loss(model(x), torch.zeros(6, 4)).backward()).replayed_step()  # noqa: B023
        found = batch_mixing(step)
        assert found is not None
        assert (found.function, found.site) == (name, "<model>")
