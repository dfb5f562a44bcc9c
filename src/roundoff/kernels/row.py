"""The columns of a summary: 27 doubles, the same in C++ (csrc/summarize.h) and in torch."""

from __future__ import annotations

import torch

MIN, MAX, SUM, SUM_ABS, SUM_SQUARES = range(5)
NUM_NAN, NUM_POSINF, NUM_NEGINF, NUM_ZERO, NUM_SUBNORMAL = range(5, 10)
HASH = 10
"""The 64 bits of this column are an integer, not a double."""
SKETCH = 11
"""Eight sums with random signs, then the same sums weighted by channel; `roundoff.kernels.sketches` reads them."""
NUM_BUCKETS = 8
ROW_WIDTH = SKETCH + 2 * NUM_BUCKETS
NUM_HISTOGRAM_BUCKETS = 64
BUCKET_OF_ONE = 40
"""The bucket of the histogram that starts at 1; the next one starts at 2."""

DTYPE_CODES: dict[torch.dtype, int] = {
    torch.float64: 0,
    torch.float32: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
    torch.int64: 4,
    torch.int32: 5,
    torch.int16: 6,
    torch.int8: 7,
    torch.uint8: 8,
    torch.bool: 8,
}
"""The dtypes that the compiled summary reads; for others the torch version is used."""
