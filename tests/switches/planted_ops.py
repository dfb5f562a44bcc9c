"""Plants wrong kernels, one after the other, has each of them found, and prints what was found as JSON.

A script of its own: kernels are registered for the whole process.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.experiments.bisect.smallest import smallest_wide
from roundoff.switches import listing_ops, switching

ATEN = torch.ops.aten
NUM_STEPS = 2


class Block(nn.Module):
    """A block of a transformer whose inner width differs from that of the others."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.down(F.gelu(self.up(x)))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm(self.conv(x)))


Built = tuple[nn.Module, tuple[int, ...]]
"""A model and the shape of a batch for it."""


def mlp() -> Built:
    widths = (6, 6, 6, 7, 6)
    layers = (nn.Sequential(nn.Linear(a, b), nn.SiLU()) for a, b in pairwise(widths))
    return nn.Sequential(*layers, nn.Linear(6, 3)), (16, 6)


def transformer() -> Built:
    blocks = (Block(8, 24 if i == 2 else 16) for i in range(4))
    return nn.Sequential(nn.Linear(6, 8), *blocks, nn.Flatten(), nn.Linear(40, 3)), (4, 5, 6)


def resnet() -> Built:
    stages = (layer for width in (4, 6) for layer in (Residual(width), Residual(width), nn.Conv2d(width, 6, 1)))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    return nn.Sequential(nn.Conv2d(3, 4, 3), *stages, *head), (4, 3, 8, 8)


def train(build: Callable[[], Built]) -> list[float]:
    torch.manual_seed(0)
    model, shape = build()
    x, y = torch.randn(shape), torch.randint(0, 3, (shape[0],))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@contextlib.contextmanager
def planted(op: Any, *, wrong_where: Callable[[Tensor], bool]) -> Iterator[None]:
    """Replace the CPU kernel of an op by one that is right, except where `wrong_where(its result)`."""
    parts = torch._decomp.decomposition_table[op]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = parts(*args, **kwargs)
        first, *rest = result if isinstance(result, tuple) else (result,)
        spoilt = first * 3 if wrong_where(first) else first
        return (spoilt, *rest) if rest else spoilt

    library = torch.library.Library("aten", "IMPL")
    library.impl(op.overloadpacket.__name__, kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()


def find(build: Callable[[], Built], by: str) -> dict[str, Any]:
    """Find the modules first and then the ops inside them, in the order in which one measured step suspects them."""
    with switching({"substitute": by}):
        good = train(build)

    def is_good(keys: frozenset[str]) -> bool:
        with switching({"substitute": by, "substitute.ops": json.dumps(sorted(keys))}):
            losses = train(build)
        return all(abs(a - b) < 1e-5 for a, b in zip(losses, good, strict=True))

    with listing_ops(by=by) as listed:
        train(build)
    unordered = smallest_wide(listed.keys, is_good)
    modules = smallest_wide(listed.listing.sites, is_good)
    ops = smallest_wide([op.key for op in listed.listing.suspects if op.site in modules.sites], is_good)
    return {
        "first_suspect": listed.listing.suspects[0].key,
        "num_ops": len(listed.keys),
        "unordered": [unordered.sites, unordered.num_runs],
        "modules": [modules.sites, modules.num_runs],
        "ops": [ops.sites, ops.num_runs],
    }


def is_fp32(shape: Callable[[torch.Size], bool]) -> Callable[[Tensor], bool]:
    return lambda x: x.dtype == torch.float32 and shape(x.shape)


Fault = tuple[Any, Callable[[Tensor], bool], Callable[[], Built], str]
"""An op, where it is wrong, in which net, and by which implementation it is to be found."""

FAULTS: dict[str, Fault] = {
    "forward": (ATEN.gelu.default, is_fp32(lambda shape: shape[-1] == 24), transformer, "fp64"),
    "backward": (ATEN.gelu_backward.default, is_fp32(lambda shape: shape[-1] == 24), transformer, "fp64"),
    "two sites": (ATEN.native_batch_norm_backward.default, is_fp32(lambda shape: shape[1] == 6), resnet, "fp64"),
    "every format": (ATEN.silu_backward.default, lambda x: x.shape[-1] == 7, mlp, "decomposed"),
}  # fmt: skip


def main() -> None:
    found = {}
    for name, (op, wrong_where, build, by) in FAULTS.items():
        with planted(op, wrong_where=wrong_where):
            found[name] = find(build, by)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
