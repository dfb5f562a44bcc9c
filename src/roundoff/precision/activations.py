"""Compressed activations: what autograd saves for the backward, stored in 2, 4 or 8 bits a value.

```python
compressed = compress_activations(model, ActivationSettings(bits=4))
loss = criterion(model(x), y)      # an ordinary loop
loss.backward()
print(compressed.report())
```
"""

from __future__ import annotations

import torch
from torch import nn

from roundoff.precision.activations_budget import choose_bits
from roundoff.precision.activations_hooks import CompressedActivations
from roundoff.precision.activations_report import ActivationReport, SiteBytes
from roundoff.precision.activations_settings import UNCOMPRESSED, ActivationSettings, bits_by_site
from roundoff.precision.activations_sites import modules_by_site

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
    """Store what the forwards of `model` save for their backwards in few bits, from now on until `remove()`.

    No layer is replaced and outputs do not change; gradients become noisy, without bias where a layer's backward is
    linear in what it saved. Only calls of `model` itself, in training mode and with gradients enabled, are affected.

    Rounding draws one number a forward from `generator`, or from torch's default one: runs with the same seed are
    equal, also after restoring its state, but later random numbers differ from those of a run without compression. A
    generator of its own leaves the default one alone. Ranks draw different numbers.

    Raises:
        RecipeError: a pattern of `settings.bits` matches no site.
    """
    settings = settings or ActivationSettings()
    bits = bits_by_site(settings, [site for site, _ in modules_by_site(model)])
    return CompressedActivations(model, settings=settings, bits=bits, generator=generator)
