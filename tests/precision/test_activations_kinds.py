"""Every kind of training: checkpointing, autocast, custom functions, in-place changes, attention, double backward."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from roundoff.precision.activations import ActivationSettings, compress_activations

EIGHT = ActivationSettings(bits=8)


def mlp(width: int = 64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def gradients(model: nn.Module, x: Tensor) -> Tensor:
    model.zero_grad()
    model(x).float().square().mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_near(candidate: Tensor, reference: Tensor, *, at_most: float = 0.03) -> None:
    assert 0 < float((candidate - reference).norm() / reference.norm()) < at_most


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.inner, self.use_reentrant = mlp(), use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_inside_the_model(use_reentrant):
    model, x = Checkpointed(use_reentrant=use_reentrant), torch.randn(100, 64, requires_grad=True)
    plain = gradients(model, x)
    with compress_activations(model, EIGHT) as compressed:
        assert_near(gradients(model, x), plain)
        assert compressed.report().bytes_before == 100 * 64 * 4  # the input of the checkpoint is all that is saved


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_around_the_model(use_reentrant):
    model, x = mlp(), torch.randn(100, 64, requires_grad=True)

    def gradient() -> Tensor:
        model.zero_grad()
        checkpoint(model, x, use_reentrant=use_reentrant).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    plain = gradient()
    with compress_activations(model, EIGHT):
        assert_near(gradient(), plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_compresses_activations_and_not_the_cast_weights(dtype):
    model, x = mlp(), torch.randn(100, 64)
    with torch.autocast("cpu", dtype=dtype):
        plain = gradients(model, x)
        with compress_activations(model, EIGHT) as compressed:
            assert_near(gradients(model, x), plain, at_most=0.05)
            report = compressed.report()
    # The batch, cast; the input and result of GELU; the result of ReLU. And the last weight, cast: it is small.
    assert report.bytes_before == (4 * 100 * 64 + 10 * 64) * 2


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


def test_custom_functions():
    class Cubic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return Cube.apply(self.inner(x))

    model, x = Cubic(), torch.randn(200, 64)
    plain = gradients(model, x)
    with compress_activations(model, EIGHT) as compressed:
        assert_near(gradients(model, x), plain)
        assert compressed.report().sites[0].site == "<model>"


class ChangesInPlace(nn.Module):
    """Changes in place what `exp` has saved; below `min_elements` the tensor itself is kept."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.exp()
        y.add_(1)
        return y


def test_a_compressed_tensor_changed_in_place_later_still_gives_the_right_gradient():
    x = torch.randn(64, 64, requires_grad=True)
    with compress_activations(model := ChangesInPlace(), EIGHT):
        model(x).sum().backward()
    assert torch.allclose(x.grad, x.exp(), atol=0.1)


def test_a_kept_tensor_changed_in_place_later_raises_as_in_torch():
    x = torch.randn(10, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        ChangesInPlace()(x).sum().backward()
    with (
        compress_activations(model := ChangesInPlace(), EIGHT),
        pytest.raises(RuntimeError, match="modified by an inplace operation"),
    ):
        model(x).sum().backward()


def test_a_parameter_changed_between_forward_and_backward_raises_as_in_torch():
    model, x = mlp(), torch.randn(100, 64)
    with compress_activations(model, EIGHT):
        loss = model(x).sum()
        with torch.no_grad():
            model[4].weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_inplace_relu():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3))
    x = torch.randn(8, 3, 16, 16)
    plain = gradients(model, x)
    with compress_activations(model, EIGHT):
        assert_near(gradients(model, x), plain)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        future = torch.ones(24, 24, dtype=torch.bool).triu(1)
        return x + self.dropout(self.attention(y, y, y, attn_mask=future)[0])


def test_attention_with_a_mask_and_dropout():
    torch.manual_seed(0)
    model, x = Attention(), torch.randn(4, 24, 32)
    own = torch.Generator().manual_seed(0)
    torch.manual_seed(1)
    plain = gradients(model, x)
    with compress_activations(model, EIGHT, generator=own) as compressed:
        torch.manual_seed(1)
        assert_near(gradients(model, x), plain)
        assert compressed.report().ratio > 3


def test_max_pooling_narrows_its_indices():
    model, x = nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1), nn.MaxPool2d(2)), torch.randn(8, 1, 16, 16)
    plain = gradients(model, x)
    with compress_activations(model, ActivationSettings(bits={"1": 8})) as compressed:
        assert torch.allclose(gradients(model, x), plain)
        pool = next(site for site in compressed.report().sites if site.site == "1")
    indices = 8 * 8 * 8 * 8
    assert pool.bytes_before - pool.bytes_after >= indices * 7


def test_lstm_and_embedding():
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.lstm = nn.Embedding(50, 32), nn.LSTM(32, 64, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(self.words(x))[0]

    torch.manual_seed(0)
    model, x = Words(), torch.randint(0, 50, (16, 20))
    plain = gradients(model, x)
    with compress_activations(model, EIGHT):
        assert_near(gradients(model, x), plain, at_most=0.1)


def test_double_backward_runs_and_is_near():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    x = torch.randn(100, 64, requires_grad=True)

    def penalty() -> Tensor:
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return torch.cat([g.flatten() for g in torch.autograd.grad(slope.square().sum(), model[0].weight)])

    plain = penalty()
    with compress_activations(model, EIGHT):
        assert_near(penalty(), plain)


def test_channels_last():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)).to(memory_format=torch.channels_last)
    x = torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last)
    plain = gradients(model, x)
    with compress_activations(model, EIGHT):
        assert_near(gradients(model, x), plain)


def test_gradient_accumulation_and_two_graphs_at_once():
    model, x = mlp(), torch.randn(100, 64)
    plain = gradients(model, x)
    with compress_activations(model, EIGHT):
        model.zero_grad()
        losses = [model(part).square().mean() / 2 for part in x.chunk(2)]
        for loss in losses:
            loss.backward()
        assert_near(torch.cat([p.grad.flatten() for p in model.parameters()]), plain)


def test_two_forwards_through_a_norm_before_the_backwards():
    model, x = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()), torch.randn(100, 64)

    def gradient() -> Tensor:
        model.zero_grad()
        (model(x).square().mean() + model(2 * x).square().mean()).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    plain = gradient()
    with compress_activations(model, EIGHT):
        assert_near(gradient(), plain)


def test_a_loss_inside_the_model():
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.loss = mlp(), nn.CrossEntropyLoss()

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.loss(self.inner(x), y)

    model, x, y = WithLoss(), torch.randn(200, 64), torch.randint(0, 10, (200,))
    with compress_activations(model, EIGHT) as compressed:
        model(x, y).backward()
        assert "loss" in {site.site for site in compressed.report().sites}


def test_a_compiled_model_is_compressed_as_one_site():
    model, x = mlp(), torch.randn(100, 64)
    plain = gradients(model, x)
    fast = torch.compile(model, backend="aot_eager")
    with compress_activations(fast, EIGHT) as compressed:
        assert_near(gradients(fast, x), plain)
        assert [site.site for site in compressed.report().sites] == ["<model>"]
        assert compressed.report().ratio > 3


def test_a_model_compressed_before_it_is_compiled_is_left_alone():
    model, x = mlp(), torch.randn(100, 64)
    plain = gradients(model, x)
    with compress_activations(model, EIGHT) as compressed:
        assert torch.equal(gradients(torch.compile(model, backend="aot_eager"), x), plain)
        assert compressed.report().sites == ()


@pytest.mark.filterwarnings("ignore:.torch.jit.trace")
def test_a_traced_forward_is_the_plain_one():
    model, x = mlp(), torch.randn(100, 64)
    with compress_activations(model, EIGHT) as compressed:
        traced = torch.jit.trace(model, x)
        assert compressed.report().sites == ()
        assert torch.equal(traced(x), model(x))


def test_function_transforms_raise_and_leave_no_hook_behind():
    model, x = mlp(), torch.randn(100, 64)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, parameters, (x,)).sum()

    with compress_activations(model, EIGHT):
        with pytest.raises(RuntimeError, match="saved tensor hooks"):
            torch.func.grad(loss)(dict(model.named_parameters()))
        a = torch.randn(2048, requires_grad=True) * 2
        assert torch.equal((a * a).grad_fn._saved_self, a)
