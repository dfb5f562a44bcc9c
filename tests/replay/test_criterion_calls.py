"""Loss functions are seen wherever they are called, with what they were fed, and the step computes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.record.source_lines import Sources
from roundoff.replay.criterion_calls import CriterionWatcher
from roundoff.replay.step_tape import StepTape
from roundoff.runs import CriterionCall
from tests.replay.taped import taped

HERE = Path(__file__).name


def calls_in(compute: Callable[[], object], tape: StepTape | None = None) -> list[CriterionCall]:
    watcher = CriterionWatcher(tape or StepTape(step=0), Sources())
    with watcher:
        compute()
    assert watcher.failure is None
    return watcher.found


class Inside(nn.Module):
    """A model that computes its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(self.embed(ids))
        return F.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, y: F.cross_entropy(x, y),
        lambda x, y: nn.CrossEntropyLoss()(x, y),
        lambda x, y: nn.Sequential(nn.Identity())(nn.CrossEntropyLoss()(x, y)),
    ],
    ids=["function", "module", "inside another"],
)
def test_a_loss_is_seen_once_whatever_calls_it(compute: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, y = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 1, 2, -100, 1])
    (call,) = calls_in(lambda: compute(x, y))
    assert (call.function, call.input_shape, call.target_shape) == ("cross_entropy", (5, 3), (5,))
    assert (call.num_targets, call.num_counted) == (5, 4)
    assert call.value == pytest.approx(float(F.cross_entropy(x, y).detach()))
    assert HERE in (call.source or "")


def test_evaluation_is_not_looked_at() -> None:
    with torch.no_grad():
        assert calls_in(lambda: F.mse_loss(torch.ones(3), torch.ones(3))) == []


@pytest.mark.parametrize(
    ("make", "made_by"),
    [
        (lambda x: x.softmax(1), "softmax"),
        (lambda x: F.log_softmax(x, 1)[:, :, None].squeeze(2), "log_softmax"),
        (lambda x: torch.sigmoid(x).reshape(-1).view(5, 3), "sigmoid"),
        (lambda x: x.softmax(1) * 2, ""),
    ],
)
def test_what_made_the_scores_is_found_through_views(make: Callable[[Tensor], Tensor], made_by: str) -> None:
    x = torch.randn(5, 3, requires_grad=True)
    (call,) = calls_in(lambda: F.mse_loss(make(x), torch.zeros(5, 3)))
    assert call.made_by == made_by


def test_probabilities_and_their_logarithms_are_distinguished() -> None:
    x = torch.randn(5, 3, requires_grad=True)
    y = torch.tensor([0, 1, 2, 0, 1])
    rows = [calls_in(lambda f=f: F.nll_loss(f(x), y))[0] for f in (lambda x: x.softmax(1), lambda x: x.log_softmax(1))]
    assert [(row.rows_sum_to_one, row.rows_are_logarithms) for row in rows] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("prediction", "target", "is_seen"),
    [((6, 1), (6,), True), ((6,), (6, 1), True), ((6, 1), (6, 1), False), ((6, 1), (), False), ((6, 3), (3,), False),
     ((6, 1), (1, 6), False)],
)  # fmt: skip
def test_a_difference_is_one_only_where_it_stretches_a_missing_dimension(
    prediction: tuple[int, ...], target: tuple[int, ...], is_seen: bool
) -> None:
    x, y = torch.randn(prediction, requires_grad=True), torch.randn(target)
    assert [call.function for call in calls_in(lambda: (y - x).square().mean())] == ["sub"] * is_seen
    assert [call.function for call in calls_in(lambda: (y * x).mean())] == ["mul"] * is_seen


@pytest.mark.parametrize(("shift", "offset"), [(0, "1"), (1, "2")])
def test_the_distance_between_tokens_and_their_targets_is_measured(tmp_path: Path, shift: int, offset: str) -> None:
    torch.manual_seed(0)
    model = Inside()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.randint(0, 7, (4, 10))
    ids, labels = rows[:, : 10 - shift], rows[:, shift:]

    def step() -> None:
        optimizer.zero_grad()
        model(ids, labels=labels).backward()
        optimizer.step()

    tape = taped(tmp_path / "run", step).tape
    (call,) = calls_in(lambda: model(ids, labels=labels), tape)
    assert [key for key, share in call.offsets.items() if share == 1.0] == [offset]


def test_a_failure_of_ours_is_kept_and_the_step_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CriterionWatcher, "_describe", lambda *_: 1 / 0)
    watcher = CriterionWatcher(StepTape(step=0), Sources())
    x = torch.randn(5, 3, requires_grad=True)
    with watcher:
        loss = F.mse_loss(x, torch.zeros(5, 3))
    assert isinstance(watcher.failure, ZeroDivisionError)
    assert torch.equal(loss, F.mse_loss(x, torch.zeros(5, 3)))


PADDED = torch.tensor([[3, 4, 5, 0, 0], [3, 1, 0, 0, 0], [6, 2, 1, 4, 0], [5, 5, 5, 5, 5]])


@pytest.mark.parametrize(
    ("targets", "ignored", "padding", "share"),
    [
        (PADDED, -100, 0, 6 / 20),
        (PADDED, 0, 0, 0.0),
        (PADDED.flip(1), -100, None, 0.0),
        (PADDED + 1, 9, 1, 6 / 20),
        (torch.cat([PADDED, torch.full((4, 1), -100)], 1), -100, 0, 6 / 20),
    ],
    ids=["counted", "ignored", "at the start", "another id", "with a column that does not count"],
)
def test_the_padding_of_targets_is_what_rows_end_with(
    targets: Tensor, ignored: int, padding: int | None, share: float
) -> None:
    scores = torch.randn(4, 8, targets.shape[1], requires_grad=True)
    (call,) = calls_in(lambda: F.cross_entropy(scores, targets, ignore_index=ignored))
    assert (call.padding, call.padding_share) == (padding, pytest.approx(share))


class Masked(Inside):
    """The same with a mask of whole numbers."""

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return super().forward(ids * mask, labels)


@pytest.mark.parametrize(("by_mask", "never"), [(True, None), (False, 6)])
def test_the_end_of_a_text_is_a_target_unless_it_is_ignored_by_its_id(
    tmp_path: Path, by_mask: bool, never: int | None
) -> None:
    torch.manual_seed(0)
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mask = (torch.arange(9)[None] < torch.tensor([[5], [7], [9], [6]])).long()
    ids = torch.randint(2, 6, (4, 9))
    ids = torch.where((mask == 1) & (mask.cumsum(1) < mask.sum(1, keepdim=True)), ids, 6)
    labels = ids.masked_fill(mask == 0 if by_mask else ids == 6, -100)

    def step() -> None:
        optimizer.zero_grad()
        model(ids, mask, labels=labels).backward()
        optimizer.step()

    tape = taped(tmp_path / "run", step).tape
    (call,) = calls_in(lambda: model(ids, mask, labels=labels), tape)
    assert call.never_target == never
