"""The sites of a model that can save activations, and the one that is running."""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from roundoff.precision.activations_saves import ForwardSaves
from roundoff.precision.sites import site_of

MODEL: Final = "<model>"
"""The site of the model's own forward, outside its children."""


def modules_by_site(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return every module of a model once, with its site, parents first; wrappers share the site of what they wrap.

    >>> [site for site, _ in modules_by_site(nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU())))]
    ['<model>', '0', '1', '1.0']
    """
    return [(site_of(name) or MODEL, module) for name, module in model.named_modules()]


class Running(threading.local):
    """What a thread is running: the modules entered, innermost last, and what the outermost forward saves.

    Copies and pickles of a model that holds one start afresh.
    """

    def __init__(self) -> None:
        self.entered: list[tuple[nn.Module, str]] = []
        self.saves: ForwardSaves | None = None
        self.hooks: saved_tensors_hooks | None = None

    def __reduce__(self) -> tuple[type[Running], tuple[()]]:
        return type(self), ()

    @property
    def site(self) -> str:
        """The innermost site."""
        return self.entered[-1][1]

    def leave(self, module: nn.Module) -> bool:
        """Forget a module and all that was entered since; say whether it was the outermost."""
        for depth in reversed(range(len(self.entered))):
            if self.entered[depth][0] is module:
                del self.entered[depth:]
                return depth == 0
        return False


def is_called_inside_itself(module: nn.Module) -> bool:
    """Say whether a call of `module` is under way besides the one that a hook is being run for.

    Torch does not run hooks when a forward is ended by Ctrl-C: what looks like a call inside a call may be the first
    call after that.
    """
    calls = 0
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is nn.Module._call_impl.__code__ and frame.f_locals.get("self") is module:
            calls += 1
        frame = frame.f_back
    return calls > 1
