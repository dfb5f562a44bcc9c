"""Whole numbers that wrap around or are rounded together are noticed, and those that stay as they are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.replay.lost_numbers import LostNumbersFinder
from roundoff.replay.replayed_step import forward_facts
from roundoff.runs import LostNumbers
from roundoff.torch_private import FunctionMode
from tests.replay.taped import taped


class Seen(FunctionMode):
    """Shows each function to a finder."""

    def __init__(self) -> None:
        super().__init__()
        self.finder = LostNumbersFinder(waits=False)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wide = self.finder.before(func.__name__, args)
        result = func(*args, **(kwargs or {}))
        self.finder.after(func, args, kwargs or {}, result, wide, lambda: ("<loop>", "train.py:3"))
        return result


def lost_in(compute: Callable[[], object]) -> list[LostNumbers]:
    seen = Seen()
    with seen:
        compute()
    assert seen.finder.failure is None
    return seen.finder.take()


def small(*values: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def in_place() -> Tensor:
    x = small(1, 250)
    x += 10
    return x


@pytest.mark.parametrize(
    ("compute", "given", "exact", "result"),
    [
        (lambda: small(3, 200) + small(2, 100), (200, 100), 300, 44),
        (lambda: small(5, 3) - small(1, 5), (3, 5), -2, 254),
        (lambda: 2 - small(1, 5), (5, 2), -3, 253),
        (lambda: torch.mul(small(90, 300, dtype=torch.int16), 200), (300, 200), 60_000, -5536),
        (lambda: small(200, dtype=torch.int16) ** 2, (200, 2), 40_000, -25_536),
        (lambda: small(60_000, dtype=torch.int32) * 60_000, (60_000, 60_000), 3_600_000_000, -694_967_296),
        (in_place, (250, 10), 260, 4),
        (lambda: torch.tensor([1.5, 300.0]).to(torch.uint8), (300,), 300, 44),
    ],
    ids=["add", "sub", "rsub", "mul", "pow", "int32", "in place", "cast"],
)
def test_numbers_that_wrap_are_named_with_what_they_come_from(
    compute: Callable[[], object], given: tuple[float, ...], exact: float, result: float
) -> None:
    (lost,) = lost_in(compute)
    assert (lost.kind, lost.given, lost.exact, lost.result, lost.num_lost) == ("wrapped", given, exact, result, 1)
    assert (lost.site, lost.source) == ("<loop>", "train.py:3")


@pytest.mark.parametrize(
    "compute",
    [
        lambda: 255 - small(0, 255),
        lambda: small(200).float() + 100,
        lambda: small(200) + torch.tensor([100]),
        lambda: small(200) * 2.5,
        lambda: (small(60_000, dtype=torch.int32) * 60_000 + 7) % 97,
        lambda: (small(60_000, dtype=torch.int32) * 60_000) >> 16,
        lambda: torch.where(small(3) > small(5), small(3) - small(5), small(5) - small(3)),
        lambda: ~small(3),
        lambda: torch.tensor([513]).to(torch.uint8),
        lambda: torch.tensor([-0.5, 255.9]).to(torch.uint8),
        lambda: small(200).sum() + small(100).sum(),
    ],
    ids=["no wrap", "float", "int64", "scalar", "remainder", "shift", "where", "not", "byte", "in range", "sum"],
)
def test_numbers_that_fit_or_wrap_on_purpose_are_not(compute: Callable[[], object]) -> None:
    assert lost_in(compute) == []


@pytest.mark.parametrize(
    ("compute", "first", "becomes"),
    [
        (lambda: torch.arange(300).to(torch.bfloat16), 257, 256),
        (lambda: torch.arange(300, dtype=torch.bfloat16), 257, 256),
        (lambda: torch.arange(3000.0)[:, None].expand(-1, 4).half(), 2049, 2048),
        (lambda: torch.arange(2**24, 2**24 + 9).float(), 2**24 + 1, 2**24),
        (lambda: torch.ones(300, dtype=torch.bfloat16).cumsum(0), 257, 256),
    ],
    ids=["cast", "counted", "fp16", "times", "summed"],
)
def test_the_first_place_that_is_rounded_to_another_is_named(
    compute: Callable[[], object], first: int, becomes: int
) -> None:
    (lost,) = lost_in(compute)
    assert (lost.kind, lost.is_counter, lost.exact, lost.result) == ("rounded", True, first, becomes)


def test_numbers_in_any_order_are_lost_if_they_are_angles() -> None:
    steps = torch.tensor([999, 3, 700])
    assert lost_in(lambda: steps.to(torch.bfloat16).float() / 1000) == []
    (lost,) = lost_in(lambda: (steps.to(torch.bfloat16).float()[:, None] * torch.ones(2)).sin())
    assert (lost.is_angle, lost.exact, lost.result) == (True, 999, 1000)
    (lost,) = lost_in(lambda: torch.tensor([700.0], dtype=torch.bfloat16).cos())
    assert (lost.is_angle, lost.function, lost.exact) == (True, "cos", 700)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: torch.arange(257).to(torch.bfloat16),
        lambda: torch.arange(2000, dtype=torch.float16),
        lambda: torch.randint(-9999, 9999, (50,)).to(torch.bfloat16),
        lambda: torch.linspace(0, 1, 1000).to(torch.bfloat16),
        lambda: torch.arange(300.0).sin().to(torch.bfloat16).cos(),
        lambda: torch.arange(100_000).float(),
    ],
    ids=["short", "fp16", "values", "fractions", "sines", "fp32"],
)
def test_places_that_stay_apart_and_other_numbers_are_fine(compute: Callable[[], object]) -> None:
    assert lost_in(compute) == []


class Counting(nn.Module):
    """Holds its places in a buffer, and computes with bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(300, dtype=torch.bfloat16))
        self.inner = nn.Linear(4, 2)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.inner((pictures + 100).float())


def test_a_replay_shows_what_a_model_loses_and_holds(tmp_path: Path) -> None:
    model = Counting()
    pictures = torch.full((3, 4), 200, dtype=torch.uint8)
    step = taped(tmp_path / "run", lambda: F.mse_loss(model(pictures), torch.zeros(3, 2)).backward()).replayed_step()
    wrapped, held = (fact for fact in forward_facts(step) if isinstance(fact, LostNumbers))
    assert (wrapped.kind, wrapped.site, wrapped.given) == ("wrapped", "<model>", (200, 100))
    assert str(wrapped.source).partition(":")[0].endswith("test_lost_numbers.py")
    assert (held.kind, held.function, held.exact) == ("rounded", "buffer places", 257)


@pytest.mark.parametrize(
    ("start", "added"),
    [
        (torch.tensor(256.0, dtype=torch.bfloat16), 1),
        (torch.full((4,), 2048.0, dtype=torch.float16), torch.ones(4)),
        (torch.tensor(2.0**24), 1),
        (torch.tensor(2.0**24), torch.tensor(1)),
    ],
)
def test_a_running_sum_that_no_longer_grows_is_lost(start: Tensor, added: Any) -> None:
    def count() -> None:
        total = start.clone()
        total += added

    (lost,) = lost_in(count)
    assert (lost.kind, lost.given[1], lost.num_lost) == ("stagnant", 1.0, start.numel())


@pytest.mark.parametrize(
    ("start", "added"),
    [
        (torch.tensor(255.0, dtype=torch.bfloat16), 1),
        (torch.tensor(256.0, dtype=torch.bfloat16), 0),
        (torch.tensor(3.0), 1e-9),
        (torch.tensor(2**24), 1),
        (torch.tensor(256.0, dtype=torch.bfloat16, requires_grad=True) * 1, 1),
    ],
    ids=["room left", "nothing added", "tiny in fp32", "integers", "part of a graph"],
)
def test_a_sum_that_grows_or_counts_nothing_is_fine(start: Tensor, added: Any) -> None:
    def count() -> None:
        total = start.clone()
        total += added

    assert lost_in(count) == []


def test_the_remainder_of_a_time_in_fp32_is_lost() -> None:
    time = torch.tensor([1.7e9])
    (lost,) = lost_in(lambda: time % 90.0)
    assert (lost.is_angle, lost.given[1]) == (True, 90.0)
    assert lost_in(lambda: time % 86400.0) == []
    assert lost_in(lambda: time.double() % 90.0) == []
