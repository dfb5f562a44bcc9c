"""The modules that are running, as far as their hooks have told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from roundoff.record.torch_private import keyword_arguments


@dataclass(slots=True)
class ModuleCall:
    """One call of a module; not frozen, since that would make the most frequent hook slower."""

    module: nn.Module
    site: int
    depth: int
    """How many modules run around it."""
    is_by_loop: bool
    """Whether the loop has called it: no module runs around it, and no backward."""

    def keyword_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the call, to be asked for where it begins."""
        return keyword_arguments()


class ModuleStack:
    """The modules that are running, outermost first, as three lists: reading `sites[-1]` costs nothing."""

    def __init__(self) -> None:
        self.running: list[nn.Module] = []
        self.sites: list[int] = []
        self._calls: list[ModuleCall] = []

    def push(self, module: nn.Module, site: int, is_by_loop: bool) -> ModuleCall:
        """Take note that a module begins to run."""
        running = self.running
        call = ModuleCall(module, site, len(running), is_by_loop)
        running.append(module)
        self.sites.append(site)
        self._calls.append(call)
        return call

    def pop(self, module: nn.Module) -> ModuleCall | None:
        """Take note that a module has ended, and with it those inside it that never said so; None if it never began."""
        running = self.running
        if running and running[-1] is module:  # as it should be: this is called often
            running.pop()
            self.sites.pop()
            return self._calls.pop()
        if module not in running:
            return None
        while running.pop() is not module:
            pass
        depth = len(running)
        call = self._calls[depth]
        del self.sites[depth:], self._calls[depth:]
        return call

    def keep(self, num_modules: int) -> bool:
        """Keep the outermost modules; say whether any were running and none is left."""
        had_any = bool(self.running)
        num_modules = max(num_modules, 0)
        del self.running[num_modules:], self.sites[num_modules:], self._calls[num_modules:]
        return had_any and not self.running
