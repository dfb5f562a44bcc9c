"""Ranks that agree through the store of their process group, each a real process."""

import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from roundoff.replay import rank_consensus
from roundoff.replay.rank_consensus import RankConsensus, ReplayRequests

LEAVES = "rank 0 has had enough"


def _rank(rank: int, folder: str, values: list[str | None], answers: Any) -> None:
    rank_consensus._MAX_WAIT_SECONDS = 1.0
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=len(values))
    dist.barrier()  # a rank that left while others still connect would break them
    value, ranks = values[rank], RankConsensus(Path("run"))
    if value == LEAVES:
        ranks.lose(LEAVES)
    if value is not None:
        answers.put((rank, ranks.exchange("test", value), ranks.all_agree("again", value), ranks.lost))
        dist.destroy_process_group()


def _answers(folder: Path, values: list[str | None]) -> dict[int, tuple[Any, ...]]:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, str(folder), values, answers)) for rank in range(len(values))]
    for process in ranks:
        process.start()
    found = {}
    for _ in [value for value in values if value is not None]:
        rank, *answer = answers.get(timeout=60)
        found[rank] = tuple(answer)
    for process in ranks:
        process.join(10)
        process.kill()
    return found


def test_every_rank_learns_what_all_gave(tmp_path: Path):
    assert _answers(tmp_path, ["a", "b"]) == {0: (["a", "b"], False, None), 1: (["a", "b"], False, None)}


def test_ranks_agree_when_all_gave_the_same(tmp_path: Path):
    assert _answers(tmp_path, ["x", "x"]) == {0: (["x", "x"], True, None), 1: (["x", "x"], True, None)}


def test_a_rank_that_does_not_come_is_given_up(tmp_path: Path):
    assert _answers(tmp_path, ["a", None]) == {0: (None, False, "a rank did not arrive within 1 s")}


def test_a_rank_that_leaves_is_not_waited_for_and_every_rank_learns_why(tmp_path: Path):
    began = time.monotonic()
    assert _answers(tmp_path, [LEAVES, "a", "a"]) == dict.fromkeys(range(3), (None, False, LEAVES))
    assert time.monotonic() - began < 30


def test_one_process_agrees_with_itself():
    ranks = RankConsensus(Path("run"))
    assert not ranks.several
    assert ranks.exchange("anything", "a") == ["a"]
    assert ranks.all_agree("anything", "a")
    assert ranks.gate("anything") is None


def test_a_request_is_for_one_step_and_the_first_counts(tmp_path: Path):
    requests = ReplayRequests(tmp_path)
    assert requests.at(3) is None
    requests.ask(2, at=3)
    requests.ask(1, at=3)
    assert requests.at(3) == 2
    assert requests.at(4) is None


@pytest.mark.parametrize("text", ["", "x"])
def test_a_half_written_request_is_none(tmp_path: Path, text: str):
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "wanted-3").write_text(text)
    assert ReplayRequests(tmp_path).at(3) is None
