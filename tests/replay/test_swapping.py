"""What is lent comes back, whatever happens inside the block."""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from enum import Enum

import pytest
import torch
from torch import nn

from roundoff.replay.swapping import (
    copy_value,
    is_plain,
    swapped_attributes,
    swapped_data,
    swapped_flags,
    swapped_gradients,
    swapped_optimizer,
)


class Interrupted(Exception):
    """Ends a block early."""


class Helper:
    def __init__(self) -> None:
        self.scale: float | None = 2.0
        self.lazy: torch.Tensor | None = None
        self.seen = [1, 2]
        self.by_name = {"a": 1}


def test_tensors_have_other_memory_inside_the_block_and_their_own_after_it() -> None:
    weight, other = nn.Parameter(torch.ones(2)), torch.zeros(3)
    addresses = [weight.data_ptr(), other.data_ptr()]
    with contextlib.suppress(Interrupted), swapped_data([weight, other], {id(weight): torch.full((2,), 7.0)}) as own:
        assert weight.tolist() == [7, 7]
        assert [data.data_ptr() for _, data in own] == addresses
        other.add_(5)
        raise Interrupted
    assert [weight.data_ptr(), other.data_ptr()] == addresses
    assert (weight.tolist(), other.tolist()) == ([1, 1], [0, 0, 0])


def test_what_is_written_inside_does_not_reach_the_copies_that_were_lent() -> None:
    weight, kept = torch.ones(2), torch.zeros(2)
    with swapped_data([weight], {id(weight): kept}):
        weight.add_(1)
    assert kept.tolist() == [0, 0]


def test_leaves_require_gradients_as_they_did_and_results_are_left_alone() -> None:
    frozen = torch.ones(2)
    made = nn.Parameter(torch.ones(2)) * 2
    with swapped_flags([frozen, made], {id(frozen): True, id(made): False}):
        assert frozen.requires_grad
        assert made.requires_grad
    assert not frozen.requires_grad


def test_gradients_are_those_that_were_kept_or_none() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    first.grad, second.grad = torch.ones(2), torch.ones(2)
    own, kept = second.grad, torch.full((2,), 3.0)
    with swapped_gradients([first, second], {id(first): kept}):
        assert first.grad is not None
        first.grad.add_(1)
        assert second.grad is None
    assert kept.tolist() == [3, 3]
    assert first.grad.tolist() == [1, 1]
    assert second.grad is own


def test_an_optimizer_has_its_own_state_and_settings_again() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.grad = torch.ones(2)
    optimizer.step()
    own = optimizer.state[weight]["momentum_buffer"]
    with contextlib.suppress(Interrupted), swapped_optimizer(optimizer, {}) as states:
        assert states[weight]["momentum_buffer"] is own
        assert not optimizer.state
        optimizer.param_groups[0]["lr"] = 5.0
        optimizer.step()
        raise Interrupted
    assert optimizer.state[weight]["momentum_buffer"] is own
    assert own.tolist() == [1, 1]
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_an_object_keeps_what_it_had_not_made_yet_and_its_containers_are_refilled_in_place() -> None:
    helper = Helper()
    seen, by_name = helper.seen, helper.by_name
    with swapped_attributes(helper, {"scale": 8.0, "lazy": None}):
        assert helper.scale == 8.0
        helper.lazy = torch.ones(1)
        helper.seen.append(3)
        helper.by_name.clear()
        helper.added = True  # type: ignore[attr-defined]
    assert vars(helper) == {"scale": 2.0, "lazy": None, "seen": [1, 2], "by_name": {"a": 1}}
    assert helper.seen is seen
    assert helper.by_name is by_name


def test_nothing_is_lent_to_an_object_of_which_nothing_is_known() -> None:
    helper = Helper()
    with swapped_attributes(helper, None):
        helper.scale = 3.0
    assert helper.scale == 2.0


def test_copies_reach_as_deep_as_plain_containers_do() -> None:
    x, shared = torch.ones(1), object()
    per_optimizer = defaultdict(dict, {1: {"stage": x}})
    copy = copy_value({"a": [x, (x,)], "b": deque([x]), "c": per_optimizer, "d": shared})
    x.zero_()
    assert [copy["a"][0].item(), copy["a"][1][0].item(), copy["b"][0].item(), copy["c"][1]["stage"].item()] == [1] * 4
    assert copy["c"]["new"] == {}
    assert copy["d"] is shared


@pytest.mark.parametrize("value", [None, 1, "a", torch.ones(1), Enum("Stage", "READY")["READY"], [1, {"a": (2.0,)}]])
def test_values_are_plain(value: object) -> None:
    assert is_plain(value)


@pytest.mark.parametrize("value", [nn.Parameter(torch.ones(1)), nn.ReLU(), print, [nn.ReLU()], {"a": print}])
def test_parts_of_the_machinery_are_not(value: object) -> None:
    assert not is_plain(value)
