"""Compresses a model's saved activations, and chooses the bits of every site for a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from roundoff.errors import RecipeError
from roundoff.kernels.group_codes import CODE_BITS
from roundoff.precision.activations.activation_settings import UNCOMPRESSED, ActivationSettings, bits_by_site
from roundoff.precision.activations.module_hooks import CompressedActivations, modules_by_site
from roundoff.precision.activations.saved_bytes import ActivationReport, SiteBytes

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
            with torch.random.fork_rng(), compressed:
                self._run_step()
            return compressed.report(), [p.grad for p in parameters if p.grad is not None]
        finally:
            for p, grad in zip(parameters, grads, strict=True):
                p.grad = grad
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)


def _distance(reference: list[Tensor], candidate: list[Tensor]) -> float:
    return sum(float((a - b).double().square().sum()) for a, b in zip(reference, candidate, strict=True))


__all__ = [
    "UNCOMPRESSED",
    "ActivationReport",
    "ActivationSettings",
    "CompressedActivations",
    "SiteBytes",
    "choose_bits",
    "compress_activations",
]


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
