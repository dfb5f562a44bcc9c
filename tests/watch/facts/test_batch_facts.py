"""What came into a step, described; test_collector.py sees it written by a watch."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.kernels.host_copies import read_now
from roundoff.runs import BatchFacts
from roundoff.watch.facts.step_batch import batch_facts_of, criterion_input_facts, external_tensors
from tests.replay.taped import Taped, taped

Pair = namedtuple("Pair", "inputs mask")


class OfPairs(nn.Linear):
    def forward(self, pair: Pair) -> Tensor:
        return super().forward(pair.inputs * pair.mask)


def step(model: nn.Module, given: Any, labels: Tensor, folder: Path) -> Taped:
    return taped(folder, lambda: F.cross_entropy(model(given), labels, label_smoothing=0.1).backward())


def facts(result: Taped) -> BatchFacts:
    return read_now(batch_facts_of(result.tape, result.sites, targets=[], criterion_input={}))[0]


def test_inputs_and_labels_are_distinguished_and_the_criterion_by_its_settings(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    x = torch.tensor([[1.0, 2.0, 3.0], [float("nan"), 5.0, 7.0]])
    found = facts(step(model, x, torch.tensor([1, 1]), tmp_path / "run"))
    inputs, labels = found.tensors
    assert (inputs.place, inputs.shape, inputs.is_target, inputs.num_nonfinite) == ("<model>[0]", (2, 3), False, 1)
    assert (inputs.min, inputs.max, inputs.mean, inputs.counts) == (1.0, 7.0, 3.6, {})
    assert inputs.std == pytest.approx(x[x.isfinite()].std(correction=0).item())
    assert (labels.place, labels.is_target, labels.counts) == ("cross_entropy[1]", True, {"1": 2})
    assert (found.criterion, found.criterion_settings["label_smoothing"]) == ("cross_entropy", 0.1)


def test_tensors_inside_of_other_containers_are_found_and_each_is_reported_once(tmp_path: Path) -> None:
    model, x = OfPairs(3, 2), torch.ones(4, 3)
    result = step(model, Pair(x, x), torch.zeros(4, dtype=torch.int64), tmp_path / "run")
    places = [(place, is_target) for place, _, is_target in external_tensors(result.tape, result.sites)]
    assert places == [("<model>[0]", False), ("cross_entropy[1]", True)]


def test_a_batch_that_is_evaluated_with_gradients_is_not_the_one_that_is_trained_on(tmp_path: Path) -> None:
    model, labels = nn.Linear(3, 2), torch.tensor([0, 1])
    test, batch = torch.ones(2, 3), torch.full((2, 3), 2.0)
    kept: list[Tensor] = []

    def train() -> None:
        output = model(test)
        kept.extend((output, F.mse_loss(output, torch.ones(2, 2))))  # alive, as where an average is printed later
        F.cross_entropy(model(batch), labels).backward()

    result = taped(tmp_path / "run", train)
    found = facts(result)
    assert {one.place for one in found.tensors if one.is_target} == {"cross_entropy[1]"}
    assert [one.max for one in found.tensors if one.place == "<model>[0]"] == [2.0]
    assert found.criterion == "cross_entropy"


def test_batches_whose_results_are_written_into_another_tensor_are_trained_on(tmp_path: Path) -> None:
    model, batches = nn.Linear(3, 2), [torch.full((2, 3), float(i)) for i in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        outputs = torch.zeros(3, 2, 2)
        outputs[0] = model(batches[0])
        outputs[1].copy_(model(batches[1]))
        (outputs.sum() + model(batches[2]).sum()).backward()
        optimizer.step()

    result = taped(tmp_path / "run", train, num_steps=2)
    given = [one for one in facts(result).tensors if one.place == "<model>[0]"]
    assert [one.max for one in given] == [0.0, 1.0, 2.0]


def test_every_sample_has_a_hash_that_only_its_own_values_decide(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 2), torch.tensor([[1.0, 2, 3], [4, 5, 6], [1, 2, 3]])
    result = step(model, x, torch.tensor([0, 1, 0]), tmp_path / "run")
    columns = read_now(batch_facts_of(result.tape, result.sites, targets=[], criterion_input={}))[1]
    assert columns is not None
    rows = columns.to_rows().to_list()
    assert [(row["kind"], row["name"]) for row in rows] == [("sample", "<model>[0]")] * 3  # labels have no samples
    first, second, third = (row["hash"] for row in rows)
    assert first == third != second


@pytest.mark.parametrize("x", [torch.ones(0, 3), torch.ones(2, 2, dtype=torch.complex64)])
def test_of_what_has_no_numbers_to_summarise_the_shape_is_reported(tmp_path: Path, x: Tensor) -> None:
    model = nn.Linear(1, 1)
    result = taped(tmp_path / "run", lambda: (model(torch.ones(1, 1)).sum() + x.abs().sum()).backward())
    (reported,) = [one for one in facts(result).tensors if one.shape == tuple(x.shape)]
    assert (reported.dtype, reported.mean, reported.hash) == (str(x.dtype).removeprefix("torch."), None, "")


def test_numbers_of_too_many_kinds_are_ids_and_not_counted(tmp_path: Path) -> None:
    model = nn.Embedding(2000, 2)
    result = taped(tmp_path / "run", lambda: model(torch.arange(1500)).sum().backward())
    (ids,) = facts(result).tensors
    assert (ids.counts, ids.max) == ({}, 1499.0)


def test_runs_at_the_ends_of_rows_are_not_inner_values(tmp_path: Path) -> None:
    model = nn.Embedding(5, 2)
    ids = torch.tensor([[0, 0, 3, 0, 4, 4], [0, 1, 1, 2, 4, 4]])
    result = taped(tmp_path / "run", lambda: model(ids).sum().backward())
    (reported,) = facts(result).tensors
    assert reported.inner_counts == {"0": 1, "1": 2, "2": 1, "3": 1}


def test_rows_that_are_probabilities_already_are_recognised() -> None:
    logits = torch.randn(4, 3)
    assert criterion_input_facts(logits) == {"rows_sum_to_one": False, "num_classes": 3}
    assert criterion_input_facts(logits.softmax(1)) == {"rows_sum_to_one": True, "num_classes": 3}
    signed = torch.tensor([[2.0, -1.0]])
    assert criterion_input_facts(signed)["rows_sum_to_one"] is False


@pytest.mark.parametrize("x", [torch.ones(3), torch.ones(2, 2, dtype=torch.int64), "logits", None])
def test_nothing_is_said_of_what_has_no_rows_of_floats(x: object) -> None:
    assert criterion_input_facts(x) == {}
