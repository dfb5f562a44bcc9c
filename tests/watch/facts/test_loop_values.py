"""What the loop computes from finite numbers that is not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from roundoff.runs import LoopValueProbe, Run, RunInfo, RunWriter
from roundoff.watch.facts.loop_values import LoopValues


def seen(folder: Path, *calls: tuple[str, tuple[Any, ...], torch.Tensor]) -> list[LoopValueProbe]:
    with RunWriter.create(folder, RunInfo(), writes_info=True) as writer:
        values = LoopValues(writer)
        for function, args, result in calls:
            values.see(function, args, result, step=3, line=lambda: ("train.py", 7))
    return Run.open(folder).probes(LoopValueProbe)


def test_a_division_by_zero_is_noted_with_its_line(tmp_path: Path) -> None:
    x, y = torch.ones(4), torch.tensor([1.0, 0.0, 2.0, 3.0])
    (found,) = seen(tmp_path / "run", ("__truediv__", (x, y), x / y))
    assert (found.step, found.function, found.num_bad, found.num_elements) == (3, "div", 1, 4)
    assert found.source is not None
    assert found.source.endswith("train.py:7")
    assert found.arguments[1].num_zero == 1


def test_good_results_and_inherited_bad_values_are_not_noted(tmp_path: Path) -> None:
    bad = torch.tensor([1.0, float("nan")])
    large = torch.full((4,), 3e38)
    calls = (("log", (bad,), bad.log()), ("sqrt", (torch.ones(2),), torch.ones(2)), ("div", (large, 1.0), large))
    assert seen(tmp_path / "run", *calls) == []
