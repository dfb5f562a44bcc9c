"""Recording changes nothing and misses nothing on an accelerator, on every kind of training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.device.simulated_device import Execution, behaving
from tests.record.test_kinds_of_training import check_is_complete, check_is_untouched
from tests.record.trainings import PLAIN, Training

NOT_ON_DEVICE = {
    "data_loader_workers": "it forks after the device was used, which the device refuses, as others do",
    "lstm": "the device has no kernels for recurrent layers",
}
"""Trainings that cannot run there, recorded or not, and why."""

KINDS = {name: training for name, training in PLAIN.items() if name not in NOT_ON_DEVICE}


@pytest.fixture(autouse=True)
def on_device() -> Iterator[None]:
    """Let the trainings use the accelerator."""
    torch.set_default_device("sim")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("execution", ["at once", "when waited for"])
@pytest.mark.parametrize("training", KINDS.values(), ids=KINDS.keys())
def test_a_recording_changes_nothing(training: Training, execution: Execution, tmp_path: Path) -> None:
    with behaving(execution=execution):
        check_is_untouched(training, tmp_path)


@pytest.mark.parametrize("training", KINDS.values(), ids=KINDS.keys())
def test_every_op_is_recorded_with_its_place(training: Training, tmp_path: Path) -> None:
    check_is_complete(training, tmp_path)


def test_every_kind_is_either_run_or_has_a_reason() -> None:
    assert PLAIN.keys() >= NOT_ON_DEVICE.keys()
