"""Compresses a model's saved activations, and chooses the bits of every site for a memory budget."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from roundoff.errors import RecipeError
from roundoff.kernels.group_codes import CODE_BITS
from roundoff.kernels.random_numbers import draw_key
from roundoff.precision.activations.activation_settings import UNCOMPRESSED, ActivationSettings, bits_by_site
from roundoff.precision.activations.forward_saves import ForwardSaves, PackedTensor, SavedTally
from roundoff.precision.compute.sharded_weights import rank
from roundoff.precision.recipe.site_formats import site_of
from roundoff.runs.records.event import MODEL
from roundoff.torch_private import calls_of_modules
from roundoff.words import size_text, text_table

_PROBE = min(CODE_BITS)
_WIDTHS = (UNCOMPRESSED, *sorted(CODE_BITS, reverse=True))


def choose_bits(
    model: nn.Module, run_step: Callable[[], object], budget_bytes: int, *, settings: ActivationSettings | None = None
) -> Mapping[str, int]:
    """Return bits per site such that the saved activations fit into `budget_bytes`, with the least gradient error.

    `run_step` runs one forward and backward on a typical batch and leaves gradients on the parameters; it must not step
    the optimizer. It is called once uncompressed, once for each width, and once for each site with only that site at 2
    bits: the squared error of the gradient is the sensitivity of the site, and more bits divide it by the square of
    their number of steps. Starting uncompressed, the width that adds the least error per saved byte is chosen until the
    budget is met. The model's gradients and buffers and the random state are restored after each call.

    Pass the result as `ActivationSettings(bits=...)`. Other fields of `settings` are used as they are.

    Raises:
        RecipeError: even 2 bits everywhere do not fit, or `run_step` does not train the model.
    """
    probe = _Probe(model, run_step, settings or ActivationSettings())
    exact = probe.gradients(dict.fromkeys(probe.sites, UNCOMPRESSED))
    sizes = {width: probe.sizes(width) for width in _WIDTHS}
    if not exact or not sizes[UNCOMPRESSED]:
        raise RecipeError.explain(
            "The step saved no activations or left no gradients.",
            why="bits are chosen by the error of the gradients, which a training step must leave on the parameters.",
            fix="pass a run_step that calls the model, after model.train(), and runs backward, but not zero_grad.",
        )
    sites = [site for site in probe.sites if site in sizes[UNCOMPRESSED]]
    least, plain = (sum(sizes[width].values()) for width in (_PROBE, UNCOMPRESSED))
    if least > budget_bytes:
        raise RecipeError.explain(
            f"Saved activations do not fit into {budget_bytes} bytes.",
            why=f"with 2 bits at every site they take {least} bytes ({plain} uncompressed).",
            fix="raise the budget, or use a smaller batch.",
        )
    errors = {site: _distance(exact, probe.gradients(probe.alone(site))) for site in sites}
    return _narrow_until(budget_bytes, sites=sites, sizes=sizes, errors=errors)


def _narrow_until(
    budget_bytes: int, *, sites: list[str], sizes: Mapping[int, Mapping[str, int]], errors: Mapping[str, float]
) -> dict[str, int]:
    chosen = dict.fromkeys(sites, UNCOMPRESSED)
    total = sum(sizes[UNCOMPRESSED].values())
    while total > budget_bytes:
        moves = [
            ((_error(errors[site], to) - _error(errors[site], chosen[site])) / saved, site, to, saved)
            for site in sites
            for to in _WIDTHS
            if to < chosen[site] and (saved := sizes[chosen[site]][site] - sizes[to][site]) > 0
        ]
        _, site, to, saved = min(moves)
        chosen[site] = to
        total -= saved
    return chosen


def _error(at_probe: float, bits: int) -> float:
    """Return the squared error with `bits`, from that measured with 2: it is proportional to the squared step."""
    if bits == UNCOMPRESSED:
        return 0.0
    return at_probe * (((1 << _PROBE) - 1) / ((1 << bits) - 1)) ** 2


class _Probe:
    """Runs the step with given bits and restores everything."""

    def __init__(self, model: nn.Module, run_step: Callable[[], object], settings: ActivationSettings) -> None:
        self.sites = [site for site, _ in modules_by_site(model)]
        self._model = model
        self._run_step = run_step
        self._settings = replace(settings, bits=UNCOMPRESSED)

    def alone(self, site: str) -> dict[str, int]:
        """Return bits that compress only this site."""
        return {**dict.fromkeys(self.sites, UNCOMPRESSED), site: _PROBE}

    def sizes(self, bits: int) -> dict[str, int]:
        """Return the bytes that each site saves with `bits` everywhere."""
        report, _ = self._run(dict.fromkeys(self.sites, bits))
        return {site.site: site.bytes_after for site in report.sites}

    def gradients(self, bits: Mapping[str, int]) -> list[Tensor]:
        """Return the gradients of all parameters that have one."""
        return self._run(bits)[1]

    def _run(self, bits: Mapping[str, int]) -> tuple[ActivationReport, list[Tensor]]:
        parameters = list(self._model.parameters())
        grads = [p.grad for p in parameters]
        buffers = [(b, b.clone()) for b in self._model.buffers()]
        # With a generator of its own, the step draws the same random numbers whatever is compressed.
        generator = torch.Generator().manual_seed(0)
        compressed = CompressedActivations(self._model, settings=self._settings, bits=bits, generator=generator)
        try:
            for p in parameters:
                p.grad = None
            with _keeping_generators(), compressed:
                self._run_step()
            return compressed.report(), [p.grad for p in parameters if p.grad is not None]
        finally:
            for p, grad in zip(parameters, grads, strict=True):
                p.grad = grad
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)


def _keeping_generators() -> contextlib.AbstractContextManager[None]:
    """Restore torch's generators, also those of an accelerator, when the block ends."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None:
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(range(torch.accelerator.device_count()), device_type=kind.type)


def _distance(reference: list[Tensor], candidate: list[Tensor]) -> float:
    return sum(float((a - b).double().square().sum()) for a, b in zip(reference, candidate, strict=True))


def compress_activations(
    model: nn.Module, settings: ActivationSettings | None = None, *, generator: torch.Generator | None = None
) -> CompressedActivations:
    """Compress the tensors that autograd saves in the forwards of `model`, until `remove()` is called.

    No layer is replaced and outputs do not change; gradients become noisy, without bias where a layer's backward is
    linear in what it saved. Only calls of `model` itself in training mode with gradients enabled are affected.

    Rounding draws one random number per forward from `generator`, by default torch's: runs with the same seed are
    equal, also after restoring its state, but later random numbers differ from those of a run without compression. Pass
    a separate generator to leave torch's alone. Ranks draw different numbers.

    Raises:
        RecipeError: a pattern of `settings.bits` matches no site.
    """
    settings = settings or ActivationSettings()
    bits = bits_by_site(settings, [site for site, _ in modules_by_site(model)])
    return CompressedActivations(model, settings=settings, bits=bits, generator=generator)


# -- hooks on modules, and a report about what they save ---------------------------------------------------------------


def modules_by_site(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return every module of a model with its site, parents first; a wrapper shares the site of what it wraps.

    >>> [site for site, _ in modules_by_site(nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU())))]
    ['<model>', '0', '1', '1.0']
    """
    return [(site_of(name) or MODEL, module) for name, module in model.named_modules()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteBytes:
    """What one site saved. A tensor saved by several sites counts only at the first."""

    site: str
    bits: int
    num_tensors: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationReport:
    """What the latest training forward saved, without parameters and buffers.

    `bytes_before` is what autograd would have kept without compression, each piece of memory counted once;
    `bytes_after` is what is kept instead: codes, heads of groups, bit masks, and uncompressed tensors.
    """

    sites: tuple[SiteBytes, ...]

    @property
    def bytes_before(self) -> int:
        """The size without compression."""
        return sum(site.bytes_before for site in self.sites)

    @property
    def bytes_after(self) -> int:
        """The size with compression."""
        return sum(site.bytes_after for site in self.sites)

    @property
    def ratio(self) -> float:
        """The compression ratio; 1 if nothing was saved."""
        return self.bytes_before / self.bytes_after if self.bytes_after else 1.0

    def to_text(self) -> str:
        """Return the sites as a table, the total first."""
        if not self.sites:
            return "Nothing saved yet: no training forward has run."
        rows = [("site", "bits", "tensors", "before", "after", "ratio")]
        total = SiteBytes(
            site="total",
            bits=0,
            num_tensors=sum(site.num_tensors for site in self.sites),
            bytes_before=self.bytes_before,
            bytes_after=self.bytes_after,
        )
        for s in (total, *self.sites):
            ratio = f"{s.bytes_before / s.bytes_after:.1f}x" if s.bytes_after else "-"
            sizes = (size_text(s.bytes_before), size_text(s.bytes_after))
            rows.append((s.site, str(s.bits or ""), str(s.num_tensors), *sizes, ratio))
        return text_table(rows, left=("site",), ruled=False, width=sys.maxsize)

    def __str__(self) -> str:
        return self.to_text()


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
    return sum(running is module for running in calls_of_modules()) > 1


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
        sites = (
            SiteBytes(site=site, bits=bits, **asdict(tallies[site]))
            for site, bits in self.bits.items()
            if site in tallies
        )
        return ActivationReport(sites=tuple(sites))

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
        key = draw_key(self._generator, stream=rank())
        saves = ForwardSaves(model, settings=self.settings, bits=self.bits, key=key)

        def pack(x: Tensor) -> PackedTensor:
            return saves.pack(x, site=running.site)

        hooks = saved_tensors_hooks(pack, PackedTensor.expand)
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
