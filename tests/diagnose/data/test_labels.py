"""Labels that are all the same, and targets that are inputs; sorted data, GANs and autoencoders are silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.data.labels import leaking_labels, single_classes
from roundoff.runs import BatchFacts, Run, Severity
from tests.diagnose.findings import only
from tests.run_folders import epochs, labels, losses, tensor, write_run


def batches_of(*targets: Any, num_steps: int = 12, criterion: str = "cross_entropy", **facts: Any) -> list[BatchFacts]:
    return [
        BatchFacts(step=step, tensors=(tensor(),), targets=targets, criterion=criterion, **facts)
        for step in range(num_steps)
    ]


def test_one_label_over_the_whole_data_set_is_named(tmp_path: Path) -> None:
    finding = only(single_classes, write_run(tmp_path / "run", batches_of(labels({"3": 8}), num_classes=5)))
    assert (finding.rule, finding.severity) == ("single-class", Severity.ERROR)
    assert "all 96 labels of the 12 observed steps are 3, although the model distinguishes 5 classes" in finding.why


def test_labels_to_be_ignored_do_not_count(tmp_path: Path) -> None:
    settings = {"ignore_index": -1}
    batches = batches_of(labels({"3": 4, "-1": 2, "-100": 2}), criterion_settings=settings)
    assert only(single_classes, write_run(tmp_path / "run", batches)).rule == "single-class"


def test_sorted_data_begin_with_one_class(tmp_path: Path) -> None:
    sorted_data = epochs(0, num_steps=12, sampler="SequentialSampler", num_batches=100)
    assert single_classes(write_run(tmp_path / "run", batches_of(labels({"0": 8})), sorted_data)) == []


def test_sorted_data_whose_stored_labels_are_all_the_same_are_named(tmp_path: Path) -> None:
    content = [{"name": "tensors[1]", "hash": "0", "mean": 2.0, "std": 0.0}]
    calls = epochs(0, num_steps=12, sampler="SequentialSampler", num_batches=100, content=content)
    assert single_classes(write_run(tmp_path / "run", batches_of(labels({"2": 8})), calls))


def test_yes_and_no_of_a_gan_are_constant_by_design(tmp_path: Path) -> None:
    yes = tensor("target", (8, 1), min=1.0, max=1.0, mean=1.0, std=0.0)
    no = tensor("target", (8, 1), min=0.0, max=0.0, mean=0.0, std=0.0)
    assert single_classes(write_run(tmp_path / "a", batches_of(yes, no, criterion="BCEWithLogitsLoss"))) == []
    assert single_classes(write_run(tmp_path / "b", batches_of(no, criterion="BCEWithLogitsLoss")))
    assert single_classes(write_run(tmp_path / "c", batches_of(no, criterion="mse_loss"))) == []


def test_a_loss_that_stands_out_later_has_met_the_rare_class(tmp_path: Path) -> None:
    batches = batches_of(labels({"0": 8}), num_classes=2)
    falling = [1.0 / (step + 1) for step in range(60)]
    assert single_classes(write_run(tmp_path / "one", batches, losses(*falling)))
    falling[45] = 0.5
    assert single_classes(write_run(tmp_path / "rare", batches, losses(*falling))) == []


def test_a_target_that_no_data_belong_to_is_a_wish(tmp_path: Path) -> None:
    """As when an image is changed until a network sees a class in it: what goes into the model is a parameter."""
    wishes = [BatchFacts(step=step, targets=(labels({"3": 8}),), criterion="cross_entropy") for step in range(12)]
    assert single_classes(write_run(tmp_path / "run", wishes)) == []


def leak(folder: Path, given: Any, target: Any, *, last_loss: float = 0.1) -> Run:
    batches = [BatchFacts(step=step, tensors=(given,), targets=(target,)) for step in range(4)]
    return write_run(folder, batches, losses(3.0, 2.0, 1.0, last_loss))


def test_a_label_among_the_inputs_is_named(tmp_path: Path) -> None:
    numbers = {"min": 0.0, "max": 4.0, "mean": 1.5, "std": 1.25}
    run = leak(tmp_path / "run", tensor("<model>[1]", (8, 1), **numbers), tensor("target", (8,), "int64", **numbers))
    finding = only(leaking_labels, run)
    assert (finding.rule, finding.severity, finding.site) == ("label-leak", Severity.WARNING, "<model>")
    assert finding.title == "the target is the input <model>[1]"


@pytest.mark.parametrize(
    ("dtype", "last_loss", "is_leak"), [("int64", 0.1, True), ("int64", 2.0, False), ("float32", 0.1, False)]
)
def test_whole_samples_are_a_leak_only_if_ids_are_copied(
    dtype: str, last_loss: float, is_leak: bool, tmp_path: Path
) -> None:
    given = tensor("<model>[0]", (8, 12), dtype, hash="a")
    run = leak(tmp_path / "run", given, tensor("target", (96,), dtype, hash="a"), last_loss=last_loss)
    assert bool(leaking_labels(run)) is is_leak


def test_another_hash_is_another_tensor(tmp_path: Path) -> None:
    assert (
        leaking_labels(leak(tmp_path / "run", tensor(shape=(8, 1), hash="a"), tensor("target", (8,), hash="b"))) == []
    )
