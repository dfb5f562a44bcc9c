"""Puts compression around a model's forward, by hooks on its modules, and takes it off again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from roundoff.kernels.random_numbers import draw_key
from roundoff.precision.activations_forms import Saved
from roundoff.precision.activations_report import ActivationReport, SiteBytes
from roundoff.precision.activations_saves import ForwardSaves, Tally
from roundoff.precision.activations_settings import ActivationSettings
from roundoff.precision.activations_sites import Running, is_called_inside_itself, modules_by_site


class CompressedActivations:
    """The compression of one model's activations: its bytes, and its end. Also a block that ends it by itself."""

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
        self._tallies: Mapping[str, Tally] = {}
        self._running = Running()
        self._handles: list[Any] = []
        for site, module in modules_by_site(model):
            hook = _SiteHook(self, site=site, is_outermost=module is model)
            self._handles.append(module.register_forward_pre_hook(hook.enter))
            self._handles.append(module.register_forward_hook(hook.leave, always_call=True))

    def report(self) -> ActivationReport:
        """Return what the latest training forward saved, site by site."""
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
        """Take all hooks off the model; graphs that exist keep their compressed tensors and can still run backward."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._end()

    def __enter__(self) -> CompressedActivations:
        return self

    def __exit__(self, *args: object) -> None:
        self.remove()

    def enter(self, module: nn.Module, *, site: str, is_outermost: bool) -> None:
        """Note that a module begins; the outermost one begins a forward."""
        running = self._running
        if is_outermost and running.entered and not is_called_inside_itself(module):
            self._end()
        if is_outermost and not running.entered and _trains(module):
            self._begin(module)
        if running.saves is not None:
            running.entered.append((module, site))

    def leave(self, module: nn.Module) -> None:
        """Note that a module ended, by returning or raising."""
        if self._running.leave(module):
            self._end()

    def _begin(self, model: nn.Module) -> None:
        running = self._running
        key = draw_key(self._generator, stream=_rank())
        saves = ForwardSaves(model, settings=self.settings, bits=self.bits, key=key)

        def pack(x: Tensor) -> Saved:
            return saves.pack(x, site=running.site)

        hooks = saved_tensors_hooks(pack, Saved.expand)
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
    """What the hooks of one module know."""

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


def _trains(model: nn.Module) -> bool:
    """Say whether a forward may be followed by a backward; a traced one is recorded, not trained."""
    is_traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return model.training and torch.is_grad_enabled() and not is_traced


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
