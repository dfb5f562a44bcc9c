"""Hashes of tensors' values, as a run keeps them."""

from __future__ import annotations

import torch

from roundoff.kernels.summaries import summarize
from roundoff.watch.facts.tensor_hashes import hash_columns, hash_in, hash_of


def test_values_decide_and_not_how_they_lie_in_memory() -> None:
    x = torch.randn(4, 6)
    assert hash_of(x) == hash_of(x.t().contiguous().t()) == hash_in(summarize(x))
    assert hash_of(x) != hash_of(x.flip(0))


def test_columns_keep_all_64_bits() -> None:
    hashes = [("a", 2**64 - 1), ("b", 0)]
    rows = hash_columns(5, "gradient", hashes).to_rows().to_list()
    assert [(row["step"], row["kind"], row["name"], row["hash"]) for row in rows] == [
        (5, "gradient", name, number) for name, number in hashes
    ]
