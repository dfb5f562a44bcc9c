"""Small trainings of every kind that recording must hold on; each trains a few steps and returns what it ended with.

They train on torch's default device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from roundoff.record.accelerator import torch_generators

NUM_STEPS = 3


@dataclass
class Outcome:
    """Everything that must be the same with and without a recording."""

    losses: list[float] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, **models: nn.Module) -> Outcome:
        for name, model in models.items():
            for key, value in model.state_dict().items():
                self.tensors[f"{name}.{key}"] = value.clone()
            for key, parameter in model.named_parameters():
                if parameter.grad is not None:
                    self.tensors[f"{name}.{key}.grad"] = parameter.grad.clone()
        host, devices = torch_generators()
        self.tensors |= {f"rng{place}": state for place, state in enumerate((host, *devices))}
        return self


Training = Callable[[], Outcome]


def train(model: nn.Module, loss_of: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Outcome:
    outcome = Outcome()
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        outcome.losses.append(loss.item())
    return outcome.keep(model=model)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn(self.conv(x)))


def resnet() -> Outcome:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.MaxPool2d(2), Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip
    x, y = torch.randn(4, 3, 16, 16), torch.randint(0, 4, (4,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    return train(model, lambda: F.cross_entropy(model(x), y), optimizer)


class Block(nn.Module):
    def __init__(self, width: int, *, fused: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]
        else:
            logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            mixed = logits.masked_fill(future, -torch.inf).softmax(-1) @ v
        return x + self.mlp(mixed)


class Gpt(nn.Module):
    def __init__(self, *, fused: bool = True, checkpointed: str = "") -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(Block(16, fused=fused) for _ in range(2))
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.tokens.weight
        self.checkpointed = checkpointed

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            reentrant = self.checkpointed == "reentrant"
            x = checkpoint(block, x, use_reentrant=reentrant) if self.checkpointed else block(x)
        return self.head(x)


def _gpt(model: nn.Module, **optimizer: Any) -> Outcome:
    ids = torch.randint(0, 20, (2, 9))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, **optimizer)
    return train(model, lambda: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()), adam)


def gpt() -> Outcome:
    torch.manual_seed(0)
    return _gpt(Gpt())


def gpt_unfused_foreach() -> Outcome:
    torch.manual_seed(0)
    return _gpt(Gpt(fused=False), foreach=True)


def gpt_fused_optimizer() -> Outcome:
    torch.manual_seed(0)
    return _gpt(Gpt(), fused=True)


def checkpointed() -> Outcome:
    torch.manual_seed(0)
    return _gpt(Gpt(checkpointed="non-reentrant"))


def checkpointed_reentrant() -> Outcome:
    torch.manual_seed(0)
    return _gpt(Gpt(checkpointed="reentrant"))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


def lstm() -> Outcome:
    torch.manual_seed(0)
    model = Tagger()
    x, y = torch.randn(4, 5, 6), torch.randint(0, 3, (4, 5))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    return train(model, lambda: F.cross_entropy(model(x).flatten(0, 1), y.flatten()), optimizer)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * grads[0]


class Squared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Square.apply(x)


def custom_function() -> Outcome:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Squared(), nn.Linear(8, 1))
    x = torch.randn(16, 4)
    return train(model, lambda: model(x).square().mean(), torch.optim.SGD(model.parameters(), lr=0.01))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def autocast_bf16() -> Outcome:
    torch.manual_seed(0)
    model, x, y = _mlp(), torch.randn(12, 6), torch.randint(0, 3, (12,))

    def loss_of() -> Tensor:
        with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
            return F.cross_entropy(model(x), y)

    return train(model, loss_of, torch.optim.AdamW(model.parameters()))


def grad_scaler_fp16() -> Outcome:
    torch.manual_seed(0)
    model, x, y = _mlp(), torch.randn(12, 6), torch.randint(0, 3, (12,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(
        torch.get_default_device().type, init_scale=2.0**40
    )  # its first steps overflow and are skipped
    outcome = Outcome()
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        with torch.autocast(torch.get_default_device().type, dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        outcome.losses.append(loss.item())
    return outcome.keep(model=model)


def gan() -> Outcome:
    torch.manual_seed(0)
    maker, critic = (
        nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4)),
        nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)),
    )
    of_maker = torch.optim.Adam(maker.parameters())
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
    outcome = Outcome()
    for _ in range(NUM_STEPS):
        of_critic.zero_grad()
        loss = critic(maker(torch.randn(5, 2)).detach()).mean() - critic(torch.randn(5, 4)).mean()
        loss.backward()
        of_critic.step()
        of_maker.zero_grad()
        wanted = -critic(maker(torch.randn(5, 2))).mean()
        wanted.backward()
        of_maker.step()
        outcome.losses += [loss.item(), wanted.item()]
    return outcome.keep(maker=maker, critic=critic)


def lbfgs() -> Outcome:
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)), torch.randn(20, 3), torch.randn(20, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    outcome = Outcome()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(NUM_STEPS):
        outcome.losses.append(optimizer.step(closure).item())
    return outcome.keep(model=model)


def data_loader_workers() -> Outcome:
    torch.manual_seed(0)
    model = _mlp()
    loader = DataLoader(TensorDataset(torch.randn(24, 6), torch.randint(0, 3, (24,))), 8, shuffle=True, num_workers=2)
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
    outcome = Outcome()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        outcome.losses.append(loss.item())
    return outcome.keep(model=model)


def accumulation_and_evaluation() -> Outcome:
    torch.manual_seed(0)
    model, x, y = _mlp(), torch.randn(24, 6), torch.randint(0, 3, (24,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    outcome = Outcome()
    for _ in range(NUM_STEPS):
        model.train()
        optimizer.zero_grad()
        for part in (slice(0, 12), slice(12, 24)):
            loss = F.cross_entropy(model(x[part]), y[part]) / 2
            loss.backward()
            outcome.losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            outcome.losses.append(F.cross_entropy(model(x), y).item())
    return outcome.keep(model=model)


def _hugging_face(model: nn.Module, **inputs: Tensor) -> Outcome:
    model.train()
    return train(model, lambda: model(**inputs).loss, torch.optim.AdamW(model.parameters(), lr=1e-3))


def hf_gpt2() -> Outcome:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    ids = torch.randint(0, 30, (2, 8))
    return _hugging_face(model, input_ids=ids, labels=ids)


def hf_bert() -> Outcome:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    model = BertForSequenceClassification(sizes)
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    return _hugging_face(
        model, input_ids=torch.randint(0, 30, (2, 8)), attention_mask=mask, labels=torch.tensor([0, 1])
    )


def hf_vit() -> Outcome:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8
    )
    model = ViTForImageClassification(sizes)
    return _hugging_face(model, pixel_values=torch.randn(2, 3, 16, 16), labels=torch.tensor([0, 1]))


PLAIN: dict[str, Training] = {
    function.__name__: function
    for function in (
        resnet, gpt, gpt_unfused_foreach, gpt_fused_optimizer, checkpointed, checkpointed_reentrant, lstm,
        custom_function, autocast_bf16, grad_scaler_fp16, gan, lbfgs, data_loader_workers,
        accumulation_and_evaluation, hf_gpt2, hf_bert, hf_vit,
    )
}  # fmt: skip
