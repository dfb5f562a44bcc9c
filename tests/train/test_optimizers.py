import pytest
import torch
from torch import nn

from roundoff.errors import TrainError
from roundoff.train import TrainConfig
from roundoff.train.config import OPTIMIZERS
from roundoff.train.models import GPT, resnet_small
from roundoff.train.optimization import BertAdam, build_optimizer, decay_groups


@pytest.mark.parametrize(
    "model", [resnet_small(num_classes=10, channels=1, width=4), GPT(vocabulary=16, context=4, width=8)]
)
def test_biases_and_norms_do_not_decay_and_everything_else_does(model: nn.Module):
    decaying, still = decay_groups(model.named_parameters(), weight_decay=0.1)
    assert (decaying["weight_decay"], still["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm)
        for parameter in module.parameters()
    }
    assert all(id(p) in norms or names[id(p)].endswith("bias") for p in still["params"])
    assert not any(id(p) in norms or names[id(p)].endswith("bias") for p in decaying["params"])
    assert len(decaying["params"]) + len(still["params"]) == len(names)


def test_frozen_parameters_are_left_out():
    model = nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    (group,) = decay_groups(model.named_parameters(), weight_decay=0.1)
    assert group["params"] == [model.bias]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_a_loss(name: str):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    x = torch.randn(32, 4)
    optimizer = build_optimizer(TrainConfig(optimizer=name, lr=0.01, lr_scaling=False), model)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_an_unknown_optimizer_is_answered_with_the_known_ones():
    with pytest.raises(TrainError, match=r"Invalid --optimizer 'adm'\.\n  why: known are sgd, adam, adamw, bert-adam"):
        TrainConfig(optimizer="adm")


def test_berts_adam_does_not_correct_the_bias_of_its_averages():
    weight = nn.Parameter(torch.tensor([1.0]))
    weight.grad = torch.tensor([2.0])
    BertAdam([weight], lr=0.1, betas=(0.9, 0.99), eps=0.0, weight_decay=0.5).step()
    assert weight.item() == pytest.approx(1.0 - 0.1 * (0.1 * 2 / (0.01 * 4) ** 0.5 + 0.5 * 1.0))
