"""The small model predicts what follows from the inputs, also not linearly or from ids, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from roundoff.watch.facts.label_predictor import KeptPairs


def explained(x: Tensor, target: Tensor) -> tuple[float, float]:
    pairs = KeptPairs()
    for part, wanted in zip(x.split(32), target.split(32), strict=True):
        pairs.add(part, wanted)
    probe = pairs.try_predicting(7)
    assert probe is not None
    assert (probe.step, probe.num_samples) == (7, len(x))
    return probe.explained, probe.explained_by_chance


@pytest.fixture
def x() -> Tensor:
    return torch.randn(384, 6, generator=torch.Generator().manual_seed(0))


def test_numbers_and_classes_are_predicted(x: Tensor) -> None:
    for target in (x[:, :3].argmax(1), (x[:, 0] * 3 + 1).unsqueeze(1), (x[:, 0].abs() > 0.7).long()):
        value, chance = explained(x, target)
        assert value > chance + 0.2


def test_shuffled_targets_are_not(x: Tensor) -> None:
    shuffled = x[:, :3].argmax(1)[torch.randperm(384, generator=torch.Generator().manual_seed(1))]
    value, chance = explained(x, shuffled)
    assert value < chance + 0.05


def test_the_last_id_before_the_padding_is_looked_at() -> None:
    source = torch.Generator().manual_seed(0)
    ids, lengths = torch.randint(1, 20, (320, 12), generator=source), torch.randint(2, 9, (320,), generator=source)
    target = (ids.gather(1, lengths[:, None] - 1)[:, 0] < 10).long()
    ids[torch.arange(12) >= lengths[:, None]] = 0
    value, chance = explained(ids, target)
    assert value > chance + 0.2


def test_little_or_unfit_data_gives_no_answer(x: Tensor) -> None:
    pairs = KeptPairs()
    assert pairs.try_predicting(0) is None
    pairs.add(x, torch.zeros(384, dtype=torch.long))
    assert pairs.try_predicting(0) is None
    pairs.add(x, torch.randn(384, 3))
    assert KeptPairs().try_predicting(0) is None
