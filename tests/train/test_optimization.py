import math

import pytest
import torch
from torch.nn import functional as F

from roundoff.train.data import IGNORED, Batch
from roundoff.train.optimization import loss_of, score_from, tally

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.1, 0.0], [1.0, 1.0, 3.0]])
TARGETS = torch.tensor([0, 1, 2])


def test_the_loss_is_the_mean_over_the_targets():
    targets = torch.tensor([0, IGNORED, 2])
    expected = -(F.log_softmax(LOGITS, -1)[0, 0] + F.log_softmax(LOGITS, -1)[2, 2]) / 2
    assert torch.allclose(loss_of(LOGITS, Batch(LOGITS, targets)), expected)


def test_a_batch_without_targets_has_no_loss():
    assert loss_of(LOGITS, Batch(LOGITS, torch.full((3,), IGNORED))).item() == 0.0


def test_a_sum_is_the_mean_times_the_batch():
    batch = Batch(LOGITS, TARGETS)
    assert torch.allclose(loss_of(LOGITS, batch, reduction="sum"), 3 * loss_of(LOGITS, batch))


def test_label_smoothing_gives_a_share_of_the_target_to_all_classes():
    logs = F.log_softmax(LOGITS, -1)
    target = 0.9 * F.one_hot(TARGETS, 3) + 0.1 / 3
    expected = -(target * logs).sum(-1).mean()
    assert torch.allclose(loss_of(LOGITS, Batch(LOGITS, TARGETS), label_smoothing=0.1), expected)


def test_mixup_mixes_the_losses_for_both_targets():
    others = torch.tensor([2, 0, 1])
    batch = Batch(LOGITS, TARGETS, other_targets=others, share=0.7)
    expected = 0.7 * F.cross_entropy(LOGITS, TARGETS) + 0.3 * F.cross_entropy(LOGITS, others)
    assert torch.allclose(loss_of(LOGITS, batch), expected)


def test_half_precision_logits_get_their_loss_in_fp32():
    assert loss_of(LOGITS.half(), Batch(LOGITS, TARGETS)).dtype == torch.float32


def test_the_loss_of_text_is_over_all_places():
    logits = torch.randn(2, 5, 7)
    targets = torch.randint(0, 7, (2, 5))
    expected = F.cross_entropy(logits.view(10, 7), targets.view(10))
    assert torch.allclose(loss_of(logits, Batch(targets, targets)), expected)


def test_sums_over_parts_make_the_same_score_as_the_whole():
    logits, targets = torch.randn(20, 10), torch.randint(0, 10, (20,))
    whole = score_from(tally(logits, Batch(logits, targets)))
    parts = score_from(
        tally(logits[:13], Batch(logits, targets[:13])) + tally(logits[13:], Batch(logits, targets[13:]))
    )
    assert (parts.top1, parts.top5, parts.num_places) == (whole.top1, whole.top5, 20)
    assert parts.loss == pytest.approx(whole.loss)
    assert whole.top1 == (logits.argmax(1) == targets).double().mean().item()


def test_padding_counts_for_nothing():
    padded = Batch(LOGITS, torch.tensor([0, 1, IGNORED]))
    score = score_from(tally(LOGITS, padded))
    assert (score.num_places, score.top1, score.top5) == (2, 0.5, 1.0)


def test_logits_that_are_not_finite_are_never_right():
    score = score_from(tally(torch.full((3, 3), math.nan), Batch(LOGITS, torch.tensor([0, 0, 0]))))
    assert (score.top1, score.top5) == (0.0, 0.0)
    assert math.isnan(score.loss)
