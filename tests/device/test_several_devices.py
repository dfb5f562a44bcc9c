"""A model over several devices, or over one and the CPU (offloaded layers): everything works as on one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import roundoff
from roundoff.diagnose import diagnose_run
from roundoff.precision import apply_recipe
from roundoff.record.device_check import checking_device
from roundoff.record.event_selection import EventSelection
from roundoff.runs import Run
from roundoff.watch.watching import watching
from tests.device.simulated_device import DeviceCounts, Execution, behaving, counting, faulty
from tests.device.test_recipes import COMPRESSED, SCALED, UNSCALED

Places = tuple[str, str]
PLACES: list[Places] = [("sim:0", "sim:1"), ("sim:1", "cpu")]
pytestmark = [pytest.mark.parametrize("places", PLACES, ids="+".join)]


class Split(nn.Module):
    """Two layers, each on its own device."""

    def __init__(self, places: Places, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16).to(places[0]), nn.Linear(16, 4).to(places[1])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.first(x.to(self.first.weight.device))).relu()
        out: Tensor = self.second(hidden.to(self.second.weight.device, self.second.weight.dtype))
        return out


def train(
    places: Places,
    *,
    recipe: str | None = None,
    dropout: float = 0.1,
    num_steps: int = 4,
    bad: int | None = None,
    counts: list[DeviceCounts] | None = None,
) -> list[Tensor]:
    """Train on fixed data, and return losses and weights; with a NaN in one batch if wanted."""
    torch.manual_seed(0)
    model: nn.Module = Split(places, dropout)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if recipe is not None:
        model, optimizer = apply_recipe(model, optimizer, recipe)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for step in range(num_steps):
        x = torch.randn(16, 8, generator=generator)
        y = x[:, :4].argmax(1).to(places[1])
        if step == bad:
            x[3, 2] = torch.nan
        x = x.to(places[0])
        with counting() as counted:
            loss = F.cross_entropy(model(x).float(), y)
            loss.backward() if recipe is None else optimizer.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        if counts is not None:
            counts.append(counted)
    return [x.detach().cpu() for x in (*losses, *model.parameters())]


def are_equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("options", [{}, {"reference": "fp64"}, {"reference": "cpu"}, {"level": "tensors"}])
def test_a_recording_leaves_it_alone(tmp_path: Path, places: Places, options: dict[str, Any]) -> None:
    with roundoff.recording(to=tmp_path / "run", strict=True, **options):
        recorded = train(places)

    assert are_equal(recorded, train(places))
    events = Run.open(tmp_path / "run").events().to_list()
    for site, device in zip(("first", "second"), places, strict=True):
        assert {event["device"] for event in events if event["site"] == site and event["op"] == "aten.addmm"} == {
            device
        }


@pytest.mark.parametrize("execution", ["at once", "when waited for"])
def test_a_watch_leaves_it_alone_and_traces_a_nan(tmp_path: Path, places: Places, execution: Execution) -> None:
    with behaving(execution=execution):
        with watching(to=tmp_path / "good"):
            watched = train(places, num_steps=25)
        assert are_equal(watched, train(places, num_steps=25))
        with watching(to=tmp_path / "bad"):
            train(places, num_steps=25, bad=12)

    good, bad = (Run.open(tmp_path / name) for name in ("good", "bad"))
    assert (diagnose_run(good).findings, list(good.failures()), good.steps) == ((), [], [0, 1])
    found = diagnose_run(bad).findings[0]
    assert (found.rule, found.step) == ("nonfinite-input", 12)


def test_a_bad_step_is_undone(tmp_path: Path, places: Places) -> None:
    with watching(to=tmp_path / "run", on_anomaly="skip") as watch:
        weights = train(places, num_steps=20, bad=12)[20:]

    assert watch.num_undone == 1
    assert all(x.isfinite().all() for x in weights)


@pytest.mark.parametrize("recipe", [*UNSCALED, *SCALED, *COMPRESSED])
def test_recipes_give_the_losses_of_the_cpu(places: Places, recipe: str) -> None:
    counts: list[DeviceCounts] = []
    there = train(places, recipe=recipe, dropout=0.0, counts=counts)[:4]

    assert [float(x) for x in there] == pytest.approx(
        [float(x) for x in train(("cpu", "cpu"), recipe=recipe, dropout=0.0)[:4]], rel=1e-3
    )
    if places[1] != "cpu":  # moving to the CPU waits by itself
        for step in counts[1:]:
            assert len(step.waits) == 2 * (recipe in SCALED), step.where("wait")  # once for each device


def test_measuring_sensitivity_leaves_it_alone(places: Places) -> None:
    found = []
    for where in (places, ("cpu", "cpu")):
        with roundoff.measuring_sensitivity(step=0, formats=("fp16",)) as measured:
            trained = train(where, dropout=0.0)
        assert are_equal(trained, train(where, dropout=0.0))
        found.append(measured.sensitivity.loss_change("fp16"))
    assert found[0] == pytest.approx(found[1], rel=0.05)
    with roundoff.measuring_sensitivity(step=0, formats=("fp16",)):
        trained = train(places)
    assert are_equal(trained, train(places))


def test_every_op_on_an_accelerator_is_checked(places: Places) -> None:
    def wrong() -> list[str]:
        with checking_device(EventSelection.of(steps=0)) as checker:
            train(places)
        assert {op.device for op in checker.ops} == {place for place in places if place != "cpu"}
        return [f"{op.place.site} {op.place.op}" for op in checker.ops if op.is_reported]

    assert wrong() == []
    with faulty("addmm", factor=1.01, shape=(16, 16)):
        assert wrong() == ["first aten.addmm"]


def test_it_is_compared_with_a_model_on_the_cpu(places: Places) -> None:
    torch.manual_seed(0)
    reference = Split(("cpu", "cpu"), 0.0)
    candidate = copy.deepcopy(reference)
    candidate.first.to(places[0])
    candidate.second.to(places[1])
    inputs, targets = torch.randn(16, 8), torch.randint(4, (16,))

    def compare() -> Any:
        return roundoff.compare_models(
            reference, candidate, inputs, targets=targets, loss=lambda out, y: F.cross_entropy(out, y.to(out.device))
        ).divergence

    assert compare() is None
    with faulty("addmm", factor=1.01):
        assert compare().site == "first"


@pytest.mark.parametrize("switch", [{"substitute": "cpu"}, {"substitute": "fp64"}, {"randomness": "0"}])
def test_switches_work_on_it(places: Places, switch: dict[str, str]) -> None:
    with roundoff.switching(switch):
        there, here = train(places), train(("cpu", "cpu"))

    if "randomness" in switch:
        assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-6) for x, y in zip(there, here, strict=True))
    else:
        plain = train(places)
        assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-6) for x, y in zip(there, plain, strict=True))
