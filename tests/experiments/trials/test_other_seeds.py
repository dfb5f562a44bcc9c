import random

import numpy as np
import pytest
import torch

from roundoff.experiments.trials.trial import shifting_seeds


def drawn() -> tuple[float, float, float]:
    random.seed(3)
    np.random.seed(seed=3)
    torch.manual_seed(3)
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_script_that_seeds_itself_draws_other_numbers_and_the_same_ones_again():
    before = drawn()
    with shifting_seeds(1):
        once, again = drawn(), drawn()
    assert once == again
    assert all(one != other for one, other in zip(once, before, strict=True))
    assert drawn() == before


def test_the_seeds_of_the_shift_are_those_of_the_number_itself():
    torch.manual_seed(5)
    expected = torch.rand(4)
    with shifting_seeds(2):
        torch.random.manual_seed(3)
        assert torch.equal(torch.rand(4), expected)


def test_without_a_shift_nothing_is_touched():
    seed = torch.manual_seed
    with shifting_seeds(0):
        assert torch.manual_seed is seed


def test_what_is_no_number_is_passed_on():
    with shifting_seeds(1), pytest.raises((TypeError, ValueError)):
        np.random.seed("three")
    with shifting_seeds(1):
        random.seed("three")
        first = random.random()
    random.seed("three")
    assert random.random() == first
