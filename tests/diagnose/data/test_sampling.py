"""Samples that come again within an epoch, and epochs that repeat each other."""

from __future__ import annotations

import random
from pathlib import Path

from roundoff.diagnose.data.epochs import alike_workers, duplicate_samples, repeated_orders
from roundoff.runs import BatchFacts, Run, Severity
from tests.diagnose.findings import only
from tests.run_folders import epochs, hash_rows, tensor, write_run

NUM_STEPS = 12


def run_of(folder: Path, samples: list[list[int]], **detail: object) -> Run:
    """Write a run of two epochs of six steps, with the samples of each step."""
    calls = epochs(0, 6, num_steps=NUM_STEPS, num_batches=6, **detail)
    batches = [BatchFacts(step=step, tensors=(tensor(hash=str(numbers)),)) for step, numbers in enumerate(samples)]
    hashes = [(step, "sample", "<model>[0]", number) for step, numbers in enumerate(samples) for number in numbers]
    return write_run(folder, batches, calls, hash_rows(hashes))


def shuffled(step: int, width: int = 4) -> list[int]:
    place = step * 5 % 6 if step < 6 else (step - 6)
    return [width * place + sample for sample in range(width)]


def test_samples_that_come_again_are_counted_within_their_epoch(tmp_path: Path) -> None:
    finding = only(
        duplicate_samples, run_of(tmp_path / "run", [[n // 2 for n in shuffled(step)] for step in range(NUM_STEPS)])
    )
    assert (finding.rule, finding.severity, finding.step) == ("duplicate-samples", Severity.WARNING, 0)
    assert "12 of 24 samples in the epoch that begins with step 0 are repetitions" in finding.why


def test_samples_of_a_loader_that_follows_are_not_counted_with_those_of_the_first(tmp_path: Path) -> None:
    samples = [[n // 2 for n in shuffled(step)] for step in range(6)] + [[90, 91, 92, 93]] * 6
    calls = epochs(0, num_steps=NUM_STEPS, num_batches=6, sampler="RandomSampler")
    batches = [BatchFacts(step=step, tensors=(tensor(hash=str(numbers)),)) for step, numbers in enumerate(samples)]
    hashes = [(step, "sample", "<model>[0]", number) for step, numbers in enumerate(samples) for number in numbers]
    finding = only(duplicate_samples, write_run(tmp_path / "run", batches, calls, hash_rows(hashes)))
    assert "12 of 24 samples in the epoch that begins with step 0 are repetitions" in finding.why


def test_the_same_samples_in_the_next_epoch_are_as_they_should(tmp_path: Path) -> None:
    assert duplicate_samples(run_of(tmp_path / "run", [shuffled(step) for step in range(NUM_STEPS)])) == []


def test_drawing_with_replacement_repeats_by_design(tmp_path: Path) -> None:
    samples = [[n // 2 for n in shuffled(step)] for step in range(NUM_STEPS)]
    assert duplicate_samples(run_of(tmp_path / "run", samples, replacement=True)) == []


def test_a_few_samples_that_come_often_among_many_that_come_once_were_put_in_on_purpose(tmp_path: Path) -> None:
    samples = [[100 + 4 * step, 101 + 4 * step, 102 + 4 * step, step % 2] for step in range(NUM_STEPS)]
    assert duplicate_samples(run_of(tmp_path / "rare", samples)) == []
    by_accident = [[100 + 4 * step, 101 + 4 * step, step // 2, 50 + step // 2] for step in range(NUM_STEPS)]
    assert (
        only(duplicate_samples, run_of(tmp_path / "twice", by_accident, sampler="Balanced")).rule == "duplicate-samples"
    )


def test_samples_of_a_dataset_that_are_equal_by_chance_are_its_nature(tmp_path: Path) -> None:
    drawn = random.Random(0)
    for name, values in {"few": 30, "many": 400}.items():
        samples = [drawn.choices(range(values), k=20) for _ in range(NUM_STEPS)]
        assert duplicate_samples(run_of(tmp_path / name, samples, sampler="RandomSampler")) == []
    twice = [[n // 2 for n in shuffled(step, width=8)] for step in range(NUM_STEPS)]
    assert only(duplicate_samples, run_of(tmp_path / "twice", twice, sampler="RandomSampler")).step == 0


def test_epochs_in_the_same_order_are_a_note(tmp_path: Path) -> None:
    finding = only(repeated_orders, run_of(tmp_path / "run", [[step % 6] for step in range(NUM_STEPS)]))
    assert (finding.rule, finding.severity, finding.step) == ("data-not-shuffled", Severity.NOTE, 6)
    assert "step 6 has the batch of step 0" in finding.why


def test_epochs_in_another_order_are_shuffled(tmp_path: Path) -> None:
    assert repeated_orders(run_of(tmp_path / "run", [shuffled(step) for step in range(NUM_STEPS)])) == []


def test_a_loop_by_hand_shows_its_rounds(tmp_path: Path) -> None:
    batches = [BatchFacts(step=step, tensors=(tensor(hash=str(step % 5)),)) for step in range(20)]
    assert only(repeated_orders, write_run(tmp_path / "run", batches)).step == 5


def test_one_batch_again_and_again_has_no_order(tmp_path: Path) -> None:
    batches = [BatchFacts(step=step, tensors=(tensor(hash="a"),)) for step in range(20)]
    assert repeated_orders(write_run(tmp_path / "run", batches)) == []


def test_workers_that_give_the_same_batches_are_named(tmp_path: Path) -> None:
    samples = [[10 * (step // 2) + n for n in range(4)] for step in range(NUM_STEPS)]
    finding = only(alike_workers, run_of(tmp_path / "run", samples, num_workers=2, generators=("rng",)))
    assert (finding.rule, finding.severity, finding.step) == ("loader-workers-alike", Severity.ERROR, 1)
    assert "in each of 3 rounds from step 0 on, the workers 0 to 1 gave the same samples" in finding.why
    assert "draws from rng, of which each of the 2 workers has a copy" in finding.why


def test_a_generator_that_all_workers_have_a_copy_of_is_a_warning(tmp_path: Path) -> None:
    samples = [shuffled(step) for step in range(NUM_STEPS)]
    finding = only(alike_workers, run_of(tmp_path / "copied", samples, num_workers=2, generators=("rng",)))
    assert (finding.rule, finding.severity) == ("loader-workers-alike", Severity.WARNING)
    seeded = run_of(tmp_path / "seeded", samples, num_workers=2, generators=("rng",), has_worker_init=True)
    assert alike_workers(seeded) == []


def test_workers_of_their_own_and_equal_samples_are_fine(tmp_path: Path) -> None:
    assert alike_workers(run_of(tmp_path / "own", [shuffled(s) for s in range(NUM_STEPS)], num_workers=2)) == []
    assert alike_workers(run_of(tmp_path / "equal", [[1, 1]] * NUM_STEPS, num_workers=2)) == []
    pairs = [[step // 2] for step in range(NUM_STEPS)]
    assert alike_workers(run_of(tmp_path / "one", pairs, num_workers=1)) == []
