"""What is seen of averages of the weights while a training runs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from roundoff.runs import AveragesProbe, Run
from roundoff.runs.files.plain_json import from_json, object_of, to_json
from roundoff.watch.watching import watching


def seen(folder: Path, after: Callable[[nn.Module], Callable[[], None]]) -> list[dict[str, Any]]:
    """Train with something that is done after each step, and return what was written about averages."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = after(model)
    with watching(model, optimizer, to=folder):
        for _ in range(22):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                update()
    return [from_json(to_json(object_of(probe))) for probe in Run.open(folder).probes(AveragesProbe)]


def test_a_copy_that_is_written_to_is_followed(tmp_path: Path) -> None:
    def averaging(model: nn.Module) -> Callable[[], None]:
        average = copy.deepcopy(model)

        def update() -> None:
            average.weight.lerp_(model.weight, 0.1)

        return update

    (found,) = seen(tmp_path / "run", averaging)
    assert (found["parameter"], found["scales"]) == ("weight", [])
    assert [entry["num_writes"] for entry in found["copies"]] == [15]
    assert 0 < found["copies"][0]["moved"] < 2 * found["moved"]


def test_small_steps_of_a_narrow_copy_are_rounded_away(tmp_path: Path) -> None:
    def still_share(name: str, decay: float, dtype: torch.dtype) -> Any:
        def averaging(model: nn.Module) -> Callable[[], None]:
            average = copy.deepcopy(model).to(dtype)

            def update() -> None:
                average.weight.lerp_(model.weight.to(dtype), 1 - decay)

            return update

        (found,) = seen(tmp_path / name, averaging)
        assert found["copies"][0]["dtype"] == str(dtype).removeprefix("torch.")
        return found["copies"][0].get("still_share")

    assert still_share("slow", 0.999, torch.bfloat16) > 0.8
    assert still_share("quick", 0.8, torch.bfloat16) < 0.1
    assert still_share("wide", 0.999, torch.float32) is None


def test_a_weight_that_is_averaged_with_itself_is_seen_to_shrink(tmp_path: Path) -> None:
    def averaging(model: nn.Module) -> Callable[[], None]:
        shadow = model.state_dict()

        def update() -> None:
            shadow["weight"].mul_(0.9).add_(model.weight, alpha=0.1)

        return update

    (found,) = seen(tmp_path / "run", averaging)
    assert found["num_holders"] >= 1
    assert len(found["scales"]) == 15
    assert all(abs(scale - 0.99) < 1e-4 for scale in found["scales"])


def test_limits_that_are_kept_anyhow_are_nothing(tmp_path: Path) -> None:
    def clamping(model: nn.Module) -> Callable[[], None]:
        def update() -> None:
            model.weight.clamp_(-9, 9)

        return update

    assert seen(tmp_path / "run", clamping) == []
