"""Measuring changes nothing, and finds something, on every kind of training."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from roundoff.sensitivity import measuring_sensitivity
from roundoff.sensitivity.measuring import NarrowTrainingWarning
from tests.record.trainings import PLAIN, Outcome, Training

NARROW_ALREADY = {"autocast_bf16", "grad_scaler_fp16"}
"""Trainings that do not compute in fp32: there is nothing to measure."""


def same(a: Outcome, b: Outcome) -> bool:
    assert a.losses == b.losses
    assert a.tensors.keys() == b.tensors.keys()
    return all(bits(a.tensors[key]) == bits(b.tensors[key]) for key in a.tensors)


def bits(x: torch.Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes() if x.dim() else bits(x[None])


@pytest.mark.parametrize("training", PLAIN.values(), ids=PLAIN.keys())
def test_losses_gradients_and_weights_are_bit_identical(training: Training) -> None:
    plain = training()
    warned = pytest.warns(NarrowTrainingWarning) if training.__name__ in NARROW_ALREADY else nullcontext()
    with warned, measuring_sensitivity(step=[0, 1], formats=["e4m3"]) as measured:
        followed = training()
    assert measured.failure is None
    assert torch._C._len_torch_function_stack() == 0
    assert same(plain, followed)
    assert same(plain, training())
    assert [each.step for each in measured.sensitivities] == [0, 1]
    if training.__name__ not in NARROW_ALREADY:
        for each in measured.sensitivities:
            assert any(effect.gradient is not None and effect.loss_change for effect in each.effects)
