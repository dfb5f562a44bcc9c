"""Compressed activations: the tensors that autograd saves for backward, stored in 2, 4 or 8 bits per value.

```python
compressed = compress_activations(model, ActivationSettings(bits=4))
loss = criterion(model(x), y)      # an ordinary training loop
loss.backward()
print(compressed.report())
```
"""

from roundoff.precision.activations.activation_settings import UNCOMPRESSED, ActivationSettings
from roundoff.precision.activations.compress import (
    ActivationReport,
    CompressedActivations,
    SiteBytes,
    choose_bits,
    compress_activations,
)

__all__ = [
    "UNCOMPRESSED",
    "ActivationReport",
    "ActivationSettings",
    "CompressedActivations",
    "SiteBytes",
    "choose_bits",
    "compress_activations",
]
