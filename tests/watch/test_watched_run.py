"""A watch as it shows itself, while it runs and after."""

from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.errors import UsageError
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watching import watching_with

QUICK = WatchSettings(probe_seconds=0, recorded_steps=())


def test_a_watch_shows_what_it_is_doing_and_what_it_found(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching_with(QUICK, model, to=tmp_path / "run") as watch:
        for scale in (1.0, float("inf")):
            optimizer.zero_grad()
            (model(torch.randn(4, 2)).square().mean() * scale).backward()
            optimizer.step()
        assert repr(watch).endswith("steps, running>") or repr(watch).endswith("step, running>")
        assert "so far " in watch._repr_html_()
        assert watch.findings == ()
    assert repr(watch) == f"<Watch {tmp_path / 'run'}: 2 steps, not diagnosed>"
    assert watch.findings[0].step == 1
    assert watch.diagnosis() is watch.diagnosis()
    assert watch.findings[0].rule in watch._repr_html_()
    assert repr(watch).endswith(f"{len(watch.findings)} findings>") or repr(watch).endswith("1 finding>")
    with pytest.raises(UsageError, match="no logger 'paper'"):
        watch.log_to("paper")
