"""Hooks on the modules of a model that compress what autograd saves during its forward."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from roundoff.kernels.random_numbers import draw_key
from roundoff.precision.activations.activation_settings import ActivationSettings
from roundoff.precision.activations.saved_bytes import ActivationReport, SiteBytes
from roundoff.precision.activations.saved_tensors import ForwardSaves, SavedTally
from roundoff.precision.activations.stored_forms import SavedTensor
from roundoff.precision.recipe.site_formats import site_of

MODEL: Final = "<model>"
"""The site of the model's own forward, outside its children."""


def modules_by_site(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return every module of a model with its site, parents first; a wrapper shares the site of what it wraps.

    >>> [site for site, _ in modules_by_site(nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU())))]
    ['<model>', '0', '1', '1.0']
    """
    return [(site_of(name) or MODEL, module) for name, module in model.named_modules()]


class RunningModules(threading.local):
    """The modules that a thread is running, innermost last, and what the outermost forward saves.

    Copied and unpickled models start with an empty one.
    """

    def __init__(self) -> None:
        self.entered: list[tuple[nn.Module, str]] = []
        self.saves: ForwardSaves | None = None
        self.hooks: saved_tensors_hooks | None = None

    def __reduce__(self) -> tuple[type[RunningModules], tuple[()]]:
        return type(self), ()

    @property
    def site(self) -> str:
        """The innermost site."""
        return self.entered[-1][1]

    def leave(self, module: nn.Module) -> bool:
        """Remove a module and all that were entered after it; return whether it was the outermost."""
        for depth in reversed(range(len(self.entered))):
            if self.entered[depth][0] is module:
                del self.entered[depth:]
                return depth == 0
        return False


def is_called_inside_itself(module: nn.Module) -> bool:
    """Return whether another call of `module` is running besides the one whose hook is being run.

    Torch does not run hooks when Ctrl-C ends a forward: what looks like a nested call may be the first call after that.
    """
    calls = 0
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is nn.Module._call_impl.__code__ and frame.f_locals.get("self") is module:
            calls += 1
        frame = frame.f_back
    return calls > 1


class CompressedActivations:
    """Handle of the compressed activations of one model: `report` them, `remove` them; also a context manager."""

    def __init__(
        self,
        model: nn.Module,
        *,
        settings: ActivationSettings,
        bits: Mapping[str, int],
        generator: torch.Generator | None = None,
    ) -> None:
        self.settings = settings
        self.bits = bits
        self._model = model
        self._generator = generator
        self._tallies: Mapping[str, SavedTally] = {}
        self._running = RunningModules()
        self._handles: list[Any] = []
        for site, module in modules_by_site(model):
            hook = _SiteHook(self, site=site, is_outermost=module is model)
            self._handles.append(module.register_forward_pre_hook(hook.enter))
            self._handles.append(module.register_forward_hook(hook.leave, always_call=True))

    def report(self) -> ActivationReport:
        """Return the bytes that the latest training forward saved, by site."""
        tallies = dict(self._tallies)
        return ActivationReport(
            sites=tuple(
                SiteBytes(
                    site=site,
                    bits=bits,
                    num_tensors=tallies[site].num_tensors,
                    bytes_before=tallies[site].bytes_before,
                    bytes_after=tallies[site].bytes_after,
                )
                for site, bits in self.bits.items()
                if site in tallies
            )
        )

    def remove(self) -> None:
        """Remove all hooks from the model; existing graphs keep their compressed tensors and can still run backward."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._end()

    def __enter__(self) -> CompressedActivations:
        return self

    def __exit__(self, *args: object) -> None:
        self.remove()

    def enter(self, module: nn.Module, *, site: str, is_outermost: bool) -> None:
        """Note that a module starts; the outermost one starts a forward."""
        running = self._running
        if is_outermost and running.entered and not is_called_inside_itself(module):
            self._end()
        if is_outermost and not running.entered and _is_training_forward(module):
            self._begin(module)
        if running.saves is not None:
            running.entered.append((module, site))

    def leave(self, module: nn.Module) -> None:
        """Note that a module has returned or raised."""
        if self._running.leave(module):
            self._end()

    def _begin(self, model: nn.Module) -> None:
        running = self._running
        key = draw_key(self._generator, stream=_rank())
        saves = ForwardSaves(model, settings=self.settings, bits=self.bits, key=key)

        def pack(x: Tensor) -> SavedTensor:
            return saves.pack(x, site=running.site)

        hooks = saved_tensors_hooks(pack, SavedTensor.expand)
        hooks.__enter__()
        running.saves, running.hooks = saves, hooks
        self._tallies = saves.tallies

    def _end(self) -> None:
        running = self._running
        if running.hooks is not None and running.saves is not None:
            running.hooks.__exit__()
            running.saves.forget()
        running.entered, running.saves, running.hooks = [], None, None


class _SiteHook:
    """The hooks of one module."""

    def __init__(self, compressed: CompressedActivations, *, site: str, is_outermost: bool) -> None:
        self._compressed = compressed
        self._site = site
        self._is_outermost = is_outermost

    def enter(self, module: nn.Module, args: object) -> None:
        if not torch.compiler.is_compiling():
            self._compressed.enter(module, site=self._site, is_outermost=self._is_outermost)

    def leave(self, module: nn.Module, args: object, output: object) -> None:
        if not torch.compiler.is_compiling():
            self._compressed.leave(module)


def _is_training_forward(model: nn.Module) -> bool:
    """Return whether a backward may follow this forward; not while torch.jit traces it."""
    is_traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return model.training and torch.is_grad_enabled() and not is_traced


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
