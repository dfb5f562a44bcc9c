import pytest
import torch
from torch import nn

from roundoff.precision import apply_recipe
from roundoff.train.optimization import WeightAverage


def linear(value: float, dtype: torch.dtype = torch.float32) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False).to(dtype)
    nn.init.constant_(model.weight, value)
    return model


def test_the_average_moves_by_what_the_decay_leaves():
    model = linear(1.0)
    average = WeightAverage(model, decay=0.75)
    nn.init.constant_(model.weight, 3.0)
    average.update(model)
    assert average.state_dict()["weight"].item() == 1.5


def test_the_model_computes_with_the_average_inside_the_block_only():
    model = linear(1.0)
    average = WeightAverage(model, decay=0.9)
    nn.init.constant_(model.weight, 5.0)
    with average.in_place_of_weights(model):
        assert model(torch.ones(1, 1)).item() == 1.0
    assert model.weight.item() == 5.0


def test_half_precision_weights_have_an_average_in_fp32():
    model = linear(1.0, torch.float16)
    average = WeightAverage(model, decay=0.9999)
    nn.init.constant_(model.weight, 2.0)
    average.update(model)
    assert average.state_dict()["weight"].dtype == torch.float32
    assert average.state_dict()["weight"].item() == pytest.approx(1.0001, abs=1e-7)


def test_it_goes_on_from_what_was_saved():
    average = WeightAverage(linear(1.0), decay=0.9)
    average.load_state_dict({"weight": torch.full((1, 1), 7.0)})
    assert average.state_dict()["weight"].item() == 7.0


def test_master_weights_keep_their_last_bits_while_the_average_is_evaluated():
    model = linear(1.0)
    average = WeightAverage(model, decay=0.9)
    nn.init.constant_(model.weight, 1 / 3)
    model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.0), "O2", loss_scale="none")
    with average.in_place_of_weights(model):
        model(torch.ones(1, 1))
    optimizer.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    assert model.state_dict()["weight"].item() == torch.tensor(1 / 3).item()
