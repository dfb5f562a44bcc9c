import random

import numpy as np
import torch

from roundoff.record.accelerator import Generators, restore_torch, torch_generators


def drawn() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


def test_every_generator_draws_the_same_again_after_restoring():
    kept = Generators.now()
    first = drawn()
    assert drawn() != first
    kept.restore()
    assert drawn() == first


def test_torch_alone_can_be_set_back():
    kept = torch_generators()
    first = drawn()
    restore_torch(kept)
    second = drawn()
    assert second[0] == first[0]
    assert second[1:] != first[1:]
