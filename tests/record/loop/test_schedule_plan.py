"""How long a schedule is meant to be is read from it; a function is asked only if nobody can notice."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, OneCycleLR, SequentialLR, StepLR

from roundoff.record.loop.schedule_plan import NO_PLAN, SchedulePlan, changes_nothing, plan_of

COUNTED: list[int] = []


def warm_up(step: int, *, warmup: int, total: int) -> float:
    return step / warmup if step < warmup else max(0.0, (total - step) / (total - warmup))


@pytest.mark.parametrize(
    ("make", "plan"),
    [
        (lambda o: CosineAnnealingLR(o, 10), SchedulePlan(length=10)),
        (lambda o: LinearLR(o, 1.0, 0.0, total_iters=16), SchedulePlan(length=16)),
        (lambda o: LinearLR(o, 0.1, 1.0, total_iters=16), SchedulePlan(peak=16)),
        (lambda o: OneCycleLR(o, 0.1, total_steps=100), SchedulePlan(length=100, peak=29)),
        (lambda o: LambdaLR(o, functools.partial(warm_up, warmup=20, total=200)), SchedulePlan(length=199, peak=20)),
        (lambda o: LambdaLR(o, lambda s: 0.5 * (1 + math.cos(math.pi * s / 300))), SchedulePlan(length=281)),
        (
            lambda o: SequentialLR(o, [LinearLR(o, 0.1, total_iters=5), CosineAnnealingLR(o, 50)], [5]),
            SchedulePlan(length=55, peak=5),
        ),
        (lambda o: StepLR(o, 3), NO_PLAN),
        (lambda o: LambdaLR(o, lambda s: 1.0 + len(str(COUNTED.append(s)))), NO_PLAN),
    ],
)
def test_the_plan_of_a_schedule(make: Callable[[Any], Any], plan: SchedulePlan) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1, momentum=0.9)
    schedule = make(optimizer)
    asked = len(COUNTED)
    assert plan_of(schedule) == plan
    assert len(COUNTED) == asked


def test_functions_that_write_or_say_something_are_not_asked() -> None:
    class Counter:
        num = 0

        def __call__(self, step: int) -> float:
            self.num += 1
            return 1.0

    assert not changes_nothing(lambda step: print(step))
    assert not changes_nothing(Counter())
    assert changes_nothing(lambda step: min(1.0, step / 10))
