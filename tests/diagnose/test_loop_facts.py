"""Epochs begin with the step after the last one of the epoch before; only the training's own loader counts."""

from __future__ import annotations

from pathlib import Path

from roundoff.diagnose.loop_facts import first_inputs, model_inputs, site_of, targets_of, training_epochs
from roundoff.runs import BatchFacts, Call, EpochDetail
from tests.run_folders import labels, losses, tensor, write_run


def test_epochs_of_the_training_loader_with_an_evaluation_in_between(tmp_path: Path) -> None:
    calls = [
        Call(step=0, call="epoch", detail=EpochDetail(loader=7)),
        Call(step=0, call="epoch", detail=EpochDetail(loader=0)),
    ]
    for step in range(9):
        calls += [Call(step=step, call="backward"), Call(step=step, call="step")]
        if step in (2, 5):
            calls += [Call(step=step, call="epoch", detail=EpochDetail(loader=loader)) for loader in (7, 0)]
    run = write_run(tmp_path / "run", calls, losses(*[1.0] * 9))
    assert [(epoch.first_step, epoch.end_step) for epoch in training_epochs(run, 0)] == [(0, 3), (3, 6), (6, 9)]


def test_what_goes_into_functions_and_labels_are_no_inputs_of_a_model(tmp_path: Path) -> None:
    tensors = tuple(tensor(place) for place in ("<model>:input_ids", "<model>:labels", "__getitem__[0]", "<model>[1]"))
    run = write_run(tmp_path / "run", BatchFacts(step=0, tensors=tensors))
    assert list(model_inputs(run, 0)) == ["<model>:input_ids", "<model>[1]"]
    assert list(first_inputs(run)) == [(0, "<model>:input_ids", [(0, tensors[0])])]
    assert targets_of(run.inputs()[0]) == [tensors[1]]


def test_targets_of_a_criterion_come_first() -> None:
    batch = BatchFacts(step=0, tensors=(tensor("<model>:labels"),), targets=(labels({"1": 2}),))
    assert targets_of(batch) == [labels({"1": 2})]


def test_a_place_says_its_site() -> None:
    assert [site_of(place) for place in ("<model>[0]", "<model>:mask", "Critic:[0]")] == [
        "<model>",
        "<model>",
        "Critic:",
    ]
