"""Emulated O1 gives each op the format that native O1, and so the lists of apex, give it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roundoff.precision import apply_recipe

torch.manual_seed(0)
WEIGHT, SQUARE, CUBE = torch.randn(5, 8), torch.randn(8, 8), torch.randn(3, 8, 8)
IMAGE_WEIGHT, GRID = torch.randn(2, 1, 3, 3), torch.rand(1, 3, 3, 2) * 2 - 1
LABELS = torch.tensor([0, 3, 5, 7])

OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(x, WEIGHT),
    "matmul": lambda x: x @ SQUARE,
    "mm": lambda x: torch.mm(x, SQUARE),
    "bmm": lambda x: torch.bmm(x[None], SQUARE[None]),
    "addmm": lambda x: torch.addmm(torch.ones(8), x, SQUARE),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, SQUARE),
    "conv2d": lambda x: F.conv2d(x[None, None], IMAGE_WEIGHT),
    "prelu": lambda x: F.prelu(x, torch.tensor([0.3])),
    "bilinear": lambda x: F.bilinear(x, x, CUBE),
    "softmax": lambda x: F.softmax(x, dim=-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "gelu": F.gelu,
    "softplus": F.softplus,
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=2.0, mode="linear"),
    "grid_sample": lambda x: F.grid_sample(x[None, None].float(), GRID, align_corners=False),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "normalize": F.normalize,
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0)),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS),
    "mse_loss": lambda x: F.mse_loss(x, x.flip(0)),
    "exp": torch.exp,
    "log": lambda x: x.abs().log(),
    "pow": lambda x: x**2,
    "rsqrt": lambda x: x.abs().rsqrt(),
    "reciprocal": torch.reciprocal,
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "var": lambda x: x.var(-1),
    "norm": lambda x: x.norm(dim=-1),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "dropout in eval": lambda x: F.dropout(x, 0.5, training=False),
    "avg_pool1d": lambda x: F.avg_pool1d(x[None], 2),
    "max_pool1d": lambda x: F.max_pool1d(x[None], 2),
    "view": lambda x: x.view(8, 4),
    "transpose": lambda x: x.t(),
    "index": lambda x: x[1:, ::2],
    "chunk": lambda x: x.chunk(2, dim=-1)[1],
    "add to itself": lambda x: x + x * 0.3,
    "times a number": lambda x: x * (1 / 3),
    "number minus": lambda x: 1 / 3 - x,
    "add wide": lambda x: x + SQUARE[0],
    "times a wide number": lambda x: x * torch.tensor(1 / 3),
    "cat with wide": lambda x: torch.cat([x, SQUARE]),
    "stack with itself": lambda x: torch.stack([x, x]),
    "where with wide": lambda x: torch.where(x > 0, x, SQUARE[0]),
    "addcmul": lambda x: torch.addcmul(x, x, SQUARE[0]),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "add full": lambda x: x + torch.full((8,), 1 / 3),
    "add arange": lambda x: x + torch.arange(8) / 3,
    "add linspace": lambda x: x + torch.linspace(0, 1, 8),
    "add zeros": lambda x: torch.zeros(8) + x * 0.3,
    "add zeros of its dtype": lambda x: torch.zeros(8, dtype=x.dtype) + x * 0.3,
    "add zeros_like": lambda x: torch.zeros_like(x) + x * 0.3,
    "full alone": lambda x: torch.full((8,), 1 / 3),
    "integers divided": lambda x: torch.arange(8) / 3,
    "float": lambda x: x.float() / 3,
    "half": lambda x: x.half() / 3,
    "to another's dtype": lambda x: SQUARE.to(x.dtype) / 3,
}
INPUTS = ["wide", "product", "fp16"]


class OneOp(nn.Module):
    """Applies an op to its input as it is, or to the result of a product."""

    def __init__(self, op: Callable[[Tensor], Tensor], given: str) -> None:
        super().__init__()
        self.op, self.given = op, given
        self.first = nn.Linear(8, 8, bias=False)
        self.seen: torch.dtype | None = None

    def forward(self, x: Tensor) -> Tensor:
        result = self.op(self.first(x) if self.given == "product" else x)
        self.seen = result.dtype
        return result


def test_the_table_is_as_long_as_promised():
    assert len(OPS) * len(INPUTS) >= 186


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("name", OPS)
def test_an_op_has_the_same_format_and_result_in_both(name: str, given: str):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    outputs, seen = [], []
    for arithmetic in ("native", "emulated"):
        torch.manual_seed(0)
        model = OneOp(OPS[name], given)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        apply_recipe(model, optimizer, "O1", arithmetic=arithmetic)
        outputs.append(model(x.half() if given == "fp16" else x).detach())
        seen.append(model.seen)
    native, emulated = outputs
    assert seen[0] == seen[1]
    assert native.dtype == emulated.dtype == torch.float32
    if seen[0] is torch.float16:
        assert torch.equal(emulated, emulated.half().float())
    # Products sum in another order; half an ulp of the result may become one.
    tolerance = 2e-3 if seen[0] is torch.float16 else 1e-5
    assert torch.allclose(native, emulated, rtol=tolerance, atol=tolerance)


def test_an_fp16_input_trains_as_it_does_natively():
    gradients = []
    for arithmetic in ("native", "emulated"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
        model, optimizer = apply_recipe(
            model, torch.optim.SGD(model.parameters(), lr=0.1), "O1", arithmetic=arithmetic, loss_scale=1024
        )
        optimizer.backward(F.cross_entropy(model(torch.randn(16, 8).half()), torch.arange(16) % 4))
        optimizer.unscale_()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.allclose(*gradients, rtol=5e-2, atol=1e-4)


@pytest.mark.parametrize(("recipe", "dtype"), [("amp-bf16", torch.bfloat16), ("amp-fp16", torch.float16)])
def test_a_submodule_called_directly_computes_under_autocast(recipe: str, dtype: torch.dtype):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    apply_recipe(model, optimizer, recipe, overrides={"1": "fp32"})
    x = torch.randn(4, 8)
    assert model[0](x).dtype is dtype
    assert model[1](x).dtype is dtype  # in fp32 inside, cast to what surrounds the site
    assert not torch.is_autocast_enabled("cpu")
    assert model(x).dtype is torch.float32


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # by torch.compile itself
def test_a_compiled_model_still_computes_under_autocast():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), "amp-bf16")
    x = torch.randn(4, 8)
    eager = model(x)
    compiled = torch.compile(model, backend="eager")(x)
    assert torch.equal(eager, compiled)
    assert not torch.is_autocast_enabled("cpu")
    optimizer.backward(compiled.sum())
    optimizer.step()
