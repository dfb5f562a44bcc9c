"""The verdict on a watched training, in the words of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from roundoff.watch.watching import watching


def test_a_block_without_a_training_is_not_called_fine(tmp_path: Path) -> None:
    with watching(to=tmp_path / "run") as watch:
        pass
    findings, screen = watch.findings, watch.verdict()
    assert findings == ()
    first, last = screen.splitlines()
    assert first.startswith("watched 0 steps in ")
    assert first.endswith(f"; {tmp_path / 'run'}")
    assert last == "Nothing was watched: no training step was seen in this process."
    assert watch.verdict().splitlines()[-1] == last


def test_what_is_found_goes_into_the_run_and_onto_the_screen(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(model, optimizer, to=tmp_path / "run") as watch:
        for scale in (1.0, float("inf")):
            optimizer.zero_grad()
            (model(torch.randn(4, 2)).square().mean() * scale).backward()
            optimizer.step()
    findings, screen = watch.findings, watch.verdict()
    assert findings[0].step == 1
    assert findings[0].rule in screen
    written = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert findings[0].rule in json.dumps(written)
