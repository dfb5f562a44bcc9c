"""Tells when a module is called that no other module is calling: a model of the script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


def when_first_called(act: Callable[[nn.Module], None]) -> None:
    """Call `act` with every top-level module, once, before its first forward."""
    running: list[nn.Module] = []
    seen: list[nn.Module] = []

    def enter(module: nn.Module, _: Any) -> None:
        if not running and not any(module is other for other in seen):
            seen.append(module)
            act(module)
        running.append(module)

    def leave(*_: Any) -> None:
        if running:
            running.pop()

    register_module_forward_pre_hook(enter)
    register_module_forward_hook(leave, always_call=True)
