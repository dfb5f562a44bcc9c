"""The ops of a step as candidates of a search: all of them, in their order, and how far two implementations differ."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.errors import SwitchError
from roundoff.switches import differing_ops, listing_ops, read_listing, switching
from roundoff.switches.op_listing import ListedOp, Listing, write_listing

KEYS = (
    "0:forward:aten.addmm",
    "1:forward:aten.gelu",
    "2:forward:aten.addmm",
    "<loop>:forward:aten.mse_loss",
    "<loop>:backward:aten.mse_loss_backward",
    "2:backward:aten.mm",
    "2:backward:aten.sum",
    "1:backward:aten.gelu_backward",
    "0:backward:aten.mm",
    "0:backward:aten.sum",
    "<loop>:optimizer:aten._foreach_add_",
)


def train(num_steps: int = 1) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    x, y = torch.randn(6, 4), torch.randn(6, 2)
    losses = []
    for step in range(num_steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        if step:
            loss = loss.sin()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_ops_of_a_step_are_listed_in_their_order():
    with listing_ops() as listed:
        train(2)
    assert listed.keys == KEYS
    assert listed.listing.sites == ("0", "1", "2", "<loop>")
    assert all(op.max_ulps is None for op in listed.listing.ops)


def test_another_step_can_be_listed_and_the_training_does_not_change():
    plain = train(3)
    with listing_ops(step=1, by="fp64") as listed:
        assert train(3) == plain
    assert "<loop>:forward:aten.sin" in listed.keys


def test_a_step_that_never_comes_leaves_an_empty_list():
    with listing_ops(step=5) as listed:
        train(2)
    assert listed.keys == ()


@pytest.mark.parametrize("by", ["fp64", "decomposed"])
def test_sound_ops_differ_by_a_few_ulps(by: str):
    ops = differing_ops(train, by=by)
    assert {op.key for op in ops} == set(KEYS)
    assert all(op.max_ulps is None or op.max_ulps < 8 for op in ops)
    assert {op.key for op in ops if op.max_ulps is not None} >= {
        "0:forward:aten.addmm",
        "1:backward:aten.gelu_backward",
    }
    measured = [op.max_ulps for op in ops if op.max_ulps is not None]
    assert measured == sorted(measured, reverse=True)


def test_a_users_function_that_differs_is_suspected_first(monkeypatch: pytest.MonkeyPatch):
    def wrong(op: str, *args: Any, **kwargs: Any) -> Any:
        if op != "aten.gelu_backward":
            return NotImplemented
        return torch.ops.aten.gelu_backward(*args, **kwargs) * 1.5

    module = types.ModuleType("users_implementations")
    module.wrong = wrong  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_implementations", module)
    first, *rest = differing_ops(train, by="users_implementations:wrong")
    assert first.key == "1:backward:aten.gelu_backward"
    assert first.max_ulps is not None
    assert first.max_ulps > 1e5
    assert all(op.max_ulps is None for op in rest)


def test_the_switch_lists_into_a_file_and_substitutes_nothing(tmp_path: Path):
    file = tmp_path / "ops.json"
    plain = train(2)
    with switching({"substitute": "fp64", "substitute.list": str(file)}):
        assert train(2) == plain
    assert read_listing(file).keys == KEYS
    assert all((op.max_ulps or 0) < 8 for op in read_listing(file).ops)


def test_a_listing_comes_back_from_its_file_as_it_was(tmp_path: Path):
    listing = Listing(
        ops=(
            ListedOp(key="a:forward:aten.mm", site="a"),
            ListedOp(key="Critic:b:forward:aten.mm", site="Critic:b", max_ulps=float("inf")),
            ListedOp(key="a:backward:aten.mm", site="a", max_ulps=1.5),
            ListedOp(key="a:forward:mine.gelu", site="a", max_ulps=0.5, runs_own_kernel=True),
        )
    )
    write_listing(listing, tmp_path / "ops.json")
    assert read_listing(tmp_path / "ops.json") == listing
    assert [op.site for op in listing.suspects] == ["Critic:b", "a", "a", "a"]
    assert listing.own_kernels == ("mine.gelu",)
    assert listing.sites == ("Critic:b", "a")


@pytest.mark.parametrize("text", ["", "[]", '{"ops": [{}]}', json.dumps({"keys": []})])
def test_a_file_without_a_listing_is_an_error(text: str, tmp_path: Path):
    file = tmp_path / "ops.json"
    file.write_text(text)
    with pytest.raises(SwitchError, match="holds no list of ops"):
        read_listing(file)


def test_results_that_are_not_finite_count_as_infinitely_far_apart(monkeypatch: pytest.MonkeyPatch):
    module = types.ModuleType("users_implementations")

    def broken(op: str, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return torch.full_like(x, torch.nan) if op == "aten.gelu" else NotImplemented

    module.broken = broken  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_implementations", module)
    assert differing_ops(train, by="users_implementations:broken")[0] == ListedOp(
        key="1:forward:aten.gelu", site="1", max_ulps=float("inf")
    )
