import random

import numpy as np
import pytest
import torch

from roundoff.experiments.other_seeds import seeds_shifted


def drawn() -> tuple[float, float, float]:
    random.seed(3)
    np.random.seed(seed=3)
    torch.manual_seed(3)
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_script_that_seeds_itself_draws_other_numbers_and_the_same_ones_again():
    before = drawn()
    with seeds_shifted(1):
        once, again = drawn(), drawn()
    assert once == again
    assert all(one != other for one, other in zip(once, before, strict=True))
    assert drawn() == before


def test_the_seeds_of_the_shift_are_those_of_the_number_itself():
    torch.manual_seed(5)
    expected = torch.rand(4)
    with seeds_shifted(2):
        torch.random.manual_seed(3)
        assert torch.equal(torch.rand(4), expected)


def test_without_a_shift_nothing_is_touched():
    seed = torch.manual_seed
    with seeds_shifted(0):
        assert torch.manual_seed is seed


def test_what_is_no_number_is_passed_on():
    with seeds_shifted(1), pytest.raises((TypeError, ValueError)):
        np.random.seed("three")
    with seeds_shifted(1):
        random.seed("three")
        first = random.random()
    random.seed("three")
    assert random.random() == first
