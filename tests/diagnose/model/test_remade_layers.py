"""Layers made in forward are reported with the module that makes them."""

from __future__ import annotations

from pathlib import Path

from roundoff.diagnose.model.remade_layers import remade_layers
from roundoff.runs import RemadeLayerProbe
from tests.diagnose.findings import only
from tests.run_folders import losses, write_run


def test_the_module_that_makes_the_layer_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", RemadeLayerProbe(step=4, site="blocks.0.<Conv2d>", num_made=4))
    finding = only(remade_layers, run)
    assert (finding.rule, finding.site) == ("layer-made-in-forward", "blocks.0")
    assert finding.title == "blocks.0 makes a new Conv2d in every forward"


def test_nothing_is_said_without_such_layers(tmp_path: Path) -> None:
    assert remade_layers(write_run(tmp_path / "run", losses(1.0, 0.9))) == []
