"""When a loss jumps the step is played with another batch and in another state, and the training goes on unchanged."""

import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.runs import Run, SpikeProbe
from roundoff.runs.files.plain_json import object_of
from roundoff.watch.watching import watching

JUMP = 60
PAGE = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text()


def trained(*, bad_batch: bool = False, bad_update: bool = False, bad_sample: bool = False) -> dict[str, Tensor]:
    torch.manual_seed(0)
    norm = nn.Identity() if bad_sample else nn.BatchNorm1d(32)  # a norm of the batch would spread it over all samples
    model = nn.Sequential(nn.Linear(8, 32), norm, nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(JUMP + 3):
        optimizer.param_groups[0]["lr"] = 30.0 if bad_update and step == JUMP - 1 else 0.1
        x = torch.randn(64, 8)
        labels = x[:, :3].argmin(1) if bad_batch and step == JUMP else x[:, :3].argmax(1)
        if bad_sample and step == JUMP:
            x[37] = -100 * x[37]
            labels[37] = x[37, :3].argmin()
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    return model.state_dict()


def spike_in(folder: Path, **fault: bool) -> dict[str, Any]:
    with watching(to=folder):
        watched = trained(**fault)
    assert all(torch.equal(x, watched[name]) for name, x in trained(**fault).items())
    return next(object_of(probe) for probe in Run.open(folder).probes(SpikeProbe) if probe.step == JUMP)


def test_a_bad_batch_is_bad_in_the_state_before_and_others_are_fine_after_it(tmp_path: Path):
    probe = spike_in(tmp_path / "run", bad_batch=True)
    losses = {metric.step: metric.loss for metric in Run.open(tmp_path / "run").metrics()}
    assert probe["loss"] == losses[JUMP]
    assert probe["earlier_state"] > 0.7 * probe["loss"]
    assert probe["other_batch"] < 0.3 * probe["loss"]


def test_a_state_that_an_update_spoilt_is_bad_with_any_batch(tmp_path: Path):
    probe = spike_in(tmp_path / "run", bad_update=True)
    assert probe["other_batch"] > 0.3 * probe["loss"]
    assert probe["earlier_state"] < 0.1 * probe["loss"]


def test_a_sample_that_costs_more_than_all_others_is_found(tmp_path: Path):
    probe = spike_in(tmp_path / "run", bad_sample=True)
    assert (probe["batch_size"], probe["worst_sample"]) == (64, 37)
    assert probe["worst_loss"] > 32 * probe["loss"]


def test_what_the_probe_writes_is_on_the_page(tmp_path: Path):
    row = next(line for line in PAGE.splitlines() if line.startswith("| `spike` |"))
    fields = re.findall(r"`(\w+)`", row.split("|")[2])
    assert ["step", "probe", *fields] == list(spike_in(tmp_path / "run", bad_batch=True))
