"""A census counts what grew between two moments."""

from __future__ import annotations

import numpy as np
import torch

from roundoff.watch.process.memory_growth import bytes_of, describe_value, graph_size, has_graph, take_census


def test_containers_that_grew_are_found_by_how_much() -> None:
    growing, resting = list(range(20)), list(range(20))
    before, _ = take_census({})
    growing.extend(range(10))
    _, grown = take_census({}, before=before, least=5)
    assert any(container is growing and more == 10 for container, more in grown)
    assert not any(container is resting for container, _ in grown)


def test_tensors_are_counted_by_dtype_and_shape() -> None:
    before, _ = take_census({})
    kept = [torch.zeros(7, 13) for _ in range(3)]
    now, _ = take_census({})
    assert now.num_tensors["float32 7x13 tensor"] - before.num_tensors["float32 7x13 tensor"] == len(kept)
    assert now.tensor_bytes["float32 7x13 tensor"] - before.tensor_bytes["float32 7x13 tensor"] == 3 * 7 * 13 * 4


def test_a_graph_that_goes_on_growing_has_more_nodes() -> None:
    x = torch.ones(3, requires_grad=True)
    total = x.sum()
    small, _ = take_census({"total": total})
    for _ in range(10):
        total = total + x.sum()
    large, _ = take_census({"total": total, "x": x})
    assert large.graph_sizes["total"] - small.graph_sizes["total"] == 20
    assert "x" not in large.graph_sizes
    assert graph_size(total) == large.graph_sizes["total"]


def test_a_graph_is_seen_through_tuples_and_dictionaries() -> None:
    loss = torch.ones(2, requires_grad=True).sum()
    assert has_graph({"step": 3, "losses": (loss,)})
    assert not has_graph({"step": 3, "losses": (loss.detach(), loss.item())})


def test_sizes_and_words_of_common_values() -> None:
    assert bytes_of(torch.zeros(4, 4)) == 64
    assert bytes_of([(1, torch.zeros(4, 4))] * 100) > 6400
    assert describe_value(np.zeros((2, 3), dtype=np.int64)) == "int64 2x3 array"
    assert describe_value((1, torch.zeros(9, 9))) == "tuple with float32 9x9 tensor"
