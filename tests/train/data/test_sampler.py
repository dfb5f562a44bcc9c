import itertools

import pytest

from roundoff.errors import DataError
from roundoff.train.data import PADDING, Draw, EvalSampler, TrainSampler


def sampler(*, num_samples: int = 21, rank: int = 0, num_ranks: int = 1, seed: int = 0, accumulate: int = 1):
    return TrainSampler(num_samples, batch_size=4, accumulate=accumulate, seed=seed, rank=rank, num_ranks=num_ranks)


def indices(draws: list[Draw]) -> list[int]:
    return list(itertools.chain.from_iterable(draw.indices for draw in draws))


def test_the_same_seed_and_epoch_draw_the_same_and_others_do_not():
    first, second = sampler(), sampler()
    assert list(first) == list(second)
    second.begin(epoch=1)
    assert indices(list(first)) != indices(list(second))
    assert indices(list(first)) != indices(list(sampler(seed=1)))


def test_an_epoch_shows_every_sample_at_most_once_and_leaves_out_less_than_a_batch():
    seen = indices(list(sampler()))
    assert len(seen) == len(set(seen)) == 20


def test_what_one_epoch_leaves_out_another_shows():
    many = sampler()
    seen = set()
    for epoch in range(5):
        many.begin(epoch=epoch)
        seen |= set(indices(list(many)))
    assert seen == set(range(21))


def test_ranks_see_different_samples_and_together_the_batches_of_one_rank():
    alone = list(sampler())
    first, second = list(sampler(num_ranks=2)), list(sampler(rank=1, num_ranks=2))
    assert not set(indices(first)) & set(indices(second))
    together = [a.indices + b.indices for a, b in zip(first, second, strict=True)]
    assert together == [draw.indices for draw in alone]
    assert {draw.seed for draw in first}.isdisjoint(draw.seed for draw in second)


def test_microbatches_are_parts_of_the_same_batch():
    parts = list(sampler(accumulate=2))
    pairs = [a.indices + b.indices for a, b in zip(parts[::2], parts[1::2], strict=True)]
    assert pairs == [draw.indices for draw in sampler()]


def test_it_goes_on_in_the_middle_of_an_epoch():
    whole, rest = sampler(), sampler()
    whole.begin(epoch=3)
    rest.begin(epoch=3, first_step=2)
    assert list(rest) == list(whole)[2:]
    assert len(rest) == 3


def test_too_few_samples_for_a_batch_are_an_error_with_a_batch_that_fits():
    with pytest.raises(DataError) as caught:
        sampler(num_samples=3)
    assert str(caught.value) == (
        "3 training samples do not fill one batch of 4.\n  fix: use a smaller batch, --batch-size 2, or more data."
    )


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("num_samples", [1, 10, 16, 17])
def test_evaluation_uses_every_sample_once_in_equally_long_batches(num_samples: int, num_ranks: int):
    shares = [list(EvalSampler(num_samples, batch_size=4, rank=rank, num_ranks=num_ranks)) for rank in range(num_ranks)]
    seen = [index for draws in shares for index in indices(draws) if index != PADDING]
    assert sorted(seen) == list(range(num_samples))
    assert len({len(draws) for draws in shares}) == 1
    assert len({len(draw.indices) for draws in shares for draw in draws}) == 1
