"""Hashes by which ranks are held against each other; several ranks are in tests/watch/test_kinds.py."""

from __future__ import annotations

from pathlib import Path

import torch

from roundoff.runs import Run, RunInfo, RunWriter
from roundoff.watch.facts.tensor_hashes import RankHashes


def test_a_single_process_has_no_rank_to_be_compared_with(tmp_path: Path) -> None:
    hashes = RankHashes(RunWriter.create(tmp_path / "run", RunInfo()))
    assert not any(map(hashes.wants, range(30)))


def test_equal_tensors_have_equal_hashes_and_those_without_numbers_have_none(tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(4.0),
        "same": torch.arange(8.0)[:4],
        "moved": torch.arange(4.0).flip(0),
        "none": None,
        "sparse": torch.eye(2).to_sparse(),
        "meta": torch.empty(2, device="meta"),
    }
    with RunWriter.create(tmp_path / "run", RunInfo()) as writer:
        RankHashes(writer).write(3, "gradient", tensors.items())
    rows = Run.open(tmp_path / "run").hashes().to_list()
    assert [(row["step"], row["kind"], row["name"]) for row in rows] == [
        (3, "gradient", name) for name in ("a", "same", "moved")
    ]
    first, same, moved = (row["hash"] for row in rows)
    assert first == same != moved


def test_nothing_is_written_where_there_is_nothing(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", RunInfo()) as writer:
        RankHashes(writer).write(0, "buffer", [])
    assert len(Run.open(tmp_path / "run").hashes()) == 0
