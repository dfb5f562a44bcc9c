import io
import random

import numpy as np
import torch

from roundoff.train.trainer_state import random_state, restore_random_state, seed_everything

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_the_same_seed_draws_the_same_numbers():
    seed_everything(5)
    first = draw()
    seed_everything(5)
    assert draw() == first
    seed_everything(6)
    assert draw() != first


def test_a_state_saved_and_loaded_as_data_alone_goes_on_where_it_was():
    seed_everything(5)
    random.gauss(0, 1)
    file = io.BytesIO()
    torch.save(random_state(CPU), file)
    expected = draw(), random.gauss(0, 1)
    file.seek(0)
    restore_random_state(torch.load(file, weights_only=True), CPU)
    assert (draw(), random.gauss(0, 1)) == expected
