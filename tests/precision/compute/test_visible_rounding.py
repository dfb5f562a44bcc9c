"""A watch of an emulated step sees its roundings and changes nothing."""

from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from roundoff.diagnose.nonfinite.values import first_nonfinite
from roundoff.record import recording
from roundoff.runs import Run
from tests.precision.small_trainings import IMAGES, batch_of, prepared, train, weights_of


class SeesOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_a_rounding_after_every_product():
    model, _ = prepared("O2")
    plain = model(IMAGES[:8])
    with SeesOps() as mode:
        watched = model(IMAGES[:8])
    place = mode.seen.index("aten.convolution.default")
    assert "roundoff.round_.default" in mode.seen[place : place + 3]
    assert torch.equal(plain, watched)


def overflowing(step: int):
    x, y = batch_of(step)
    return x * (6e4 if step == 2 else 1.0), y


@pytest.mark.parametrize("arithmetic", ["emulated", "native"])
def test_a_recording_changes_nothing_and_names_the_site_that_overflowed(arithmetic: str, tmp_path: Path):
    losses, weights = [], []
    for enabled in (False, True):
        model, optimizer = prepared("O2", arithmetic=arithmetic)
        with torch.no_grad():
            model[0].weight.mul_(9)
        with recording(model, to=tmp_path / "run", steps=range(4), enabled=enabled):
            losses.append(train(model, optimizer, range(4), batch=overflowing))
        weights.append(weights_of(model))
    assert torch.equal(torch.tensor(losses[0]), torch.tensor(losses[1])) or losses[0][2] != losses[0][2]
    assert torch.equal(*weights)
    finding = first_nonfinite(Run.open(tmp_path / "run"))
    assert finding is not None
    assert (finding.step, finding.site, finding.phase) == (2, "0", "forward")


def test_a_healthy_fp8_step_shows_nothing_that_is_not_finite(tmp_path: Path):
    model, optimizer = prepared("fp8-delayed")
    with recording(model, to=tmp_path / "run", steps=range(2)):
        train(model, optimizer, range(2))
    assert first_nonfinite(Run.open(tmp_path / "run")) is None
