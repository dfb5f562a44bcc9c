"""Trains a script under msprobe's monitor with its alert for NaN: python msprobe_monitor.py SCRIPT.

It watches activations and the gradients of weights. Its other alert, for values that are 1.5 times their mean so far,
speaks in every training, also healthy ones; so does the one for NaN about gradients of inputs that have none.
Both are off.
Needs the package mindstudio-probe, best in an environment of its own: `benchmarks/record_against_peers.py` makes one.
"""

from __future__ import annotations

import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from msprobe.pytorch import TrainerMon
from script import run_script
from top_level import when_first_called
from torch import nn

SETTINGS = {
    "targets": {},
    "format": "csv",
    "ops": ["norm", "min", "max", "mean", "nans"],
    "ndigits": 6,
    "step_count_per_record": 1000,
    "xy_distribution": True,
    "forward_only": True,
    "wg_distribution": True,
    "alert": {"rules": [{"rule_name": "AnomalyNan"}], "dump": False},
}
stack = inspect.stack
inspect.stack = lambda context=1: stack(0)  # it asks at every hook; looking for source lines takes most of its time
warnings.filterwarnings("ignore", message="Full backward hook is firing")
Path("monitor.json").write_text(json.dumps(SETTINGS))
optimizers: list[torch.optim.Optimizer] = []
monitors: list[Any] = []
make = torch.optim.Optimizer.__init__


def noted(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
    """Make an optimizer and note it."""
    make(self, *args, **kwargs)
    optimizers.append(self)


def monitor(model: nn.Module) -> None:
    """Monitor the first model that is called and has an optimizer."""
    weights = {id(weight) for weight in model.parameters()}
    for optimizer in optimizers:
        held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        if held & weights and not monitors:
            monitors.append(TrainerMon("monitor.json", params_have_main_grad=False))
            monitors[0].set_monitor(model, optimizer)


torch.optim.Optimizer.__init__ = noted  # type: ignore[method-assign]
when_first_called(monitor)
run_script()
