"""Ranks that read the same, and epochs that repeat themselves, are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.ranks.division_of_work import data_of_ranks
from roundoff.runs import BatchFacts, Call, Run, TensorFacts, call_detail
from tests.run_folders import losses, write_run


def batch(step: int, content: int) -> BatchFacts:
    fact = TensorFacts(place="<model>[0]", shape=(4, 2), dtype="float32", hash=f"{content:016x}")
    return BatchFacts(step=step, tensors=(fact,))


def write(folder: Path, contents: tuple[list[int], list[int]], calls: list[Call] | None = None) -> Run:
    for rank in range(2):
        batches = [batch(step, content) for step, content in enumerate(contents[rank])]
        run = write_run(folder, batches, calls or [], losses(1.0), rank=rank, ranks=2)
    return run


def test_equal_batches_on_two_ranks_are_named(tmp_path: Path) -> None:
    (finding,) = data_of_ranks(write(tmp_path / "run", ([1, 2, 3, 4], [1, 2, 3, 4])))
    assert (finding.rule, finding.rank) == ("rank-data-duplicate", 1)


@pytest.mark.parametrize(
    "contents", [([1, 2, 3, 4], [5, 6, 7, 8]), ([1, 2, 3, 4], [1, 6, 7, 8]), ([1] * 4, [1] * 4)],
    ids=["different data", "one batch by chance", "one batch on purpose"],
)  # fmt: skip
def test_other_batches_are_fine(contents: tuple[list[int], list[int]], tmp_path: Path) -> None:
    assert data_of_ranks(write(tmp_path / "run", contents)) == []


def epochs(numbers: list[int], **detail: object) -> list[Call]:
    known = {"loader": 0, "num_batches": 3, "shuffle": True, **detail}
    return [
        Call(step=3 * place, call="epoch", detail=call_detail("epoch", {**known, "set_epoch": epoch}))
        for place, epoch in enumerate(numbers)
    ]


REPEATED = ([1, 2, 3, 1, 2, 3], [4, 5, 6, 4, 5, 6])
SHUFFLED = ([1, 2, 3, 2, 3, 1], [4, 5, 6, 6, 5, 4])


def test_epochs_in_the_same_order_are_named(tmp_path: Path) -> None:
    (finding,) = data_of_ranks(write(tmp_path / "run", REPEATED, epochs([0, 0])))
    assert (finding.rule, finding.step) == ("epoch-order-repeated", 3)


def test_epochs_that_are_set_or_not_meant_to_be_shuffled_are_fine(tmp_path: Path) -> None:
    assert data_of_ranks(write(tmp_path / "set", SHUFFLED, epochs([0, 1]))) == []
    assert data_of_ranks(write(tmp_path / "plain", REPEATED, epochs([0, 0], shuffle=False))) == []
