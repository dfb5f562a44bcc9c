"""A ring of states and tapes says which steps can be rebuilt, within a limit of memory."""

from __future__ import annotations

import torch
from torch import nn

from roundoff.replay.snapshots import Snapshots
from roundoff.replay.state import Training
from roundoff.replay.step_tape import StepTape


def ring(*, memory_bytes: int = 2**20, steps: int = 6, every: int = 2, **unusual: StepTape) -> Snapshots:
    training = Training()
    model = nn.Linear(2, 2)
    training.add_model(model)
    snapshots = Snapshots(training, memory_bytes=memory_bytes)
    for step in range(steps):
        if step % every == 0:
            snapshots.take(step)
        snapshots.add(unusual.get(f"step{step}", StepTape(step)))
    return snapshots


def steps_of(path: tuple[object, list[StepTape]] | None) -> list[int] | None:
    return None if path is None else [tape.step for tape in path[1]]


def test_a_step_is_reached_from_the_latest_or_the_earliest_snapshot() -> None:
    snapshots = ring()
    assert steps_of(snapshots.path_to(5, among=[])) == [4, 5]
    assert steps_of(snapshots.path_to(5, among=[], earliest=True)) == [2, 3, 4, 5]
    assert steps_of(snapshots.path_to(6, among=[StepTape(6)])) == [4, 5, 6]
    assert snapshots.path_to(1, among=[]) is None


def test_a_step_that_goes_on_with_an_earlier_graph_is_reached_from_before_that_one() -> None:
    snapshots = ring(step4=StepTape(4, reached_steps=frozenset({3})))
    assert steps_of(snapshots.path_to(4, among=[])) == [2, 3, 4]
    assert ring(step4=StepTape(4, reached_steps=frozenset({1}))).path_to(4, among=[]) is None


def test_a_step_that_could_not_be_taped_ends_what_can_be_rebuilt() -> None:
    snapshots = ring(step4=StepTape(4, why_not_replayable="it is strange"))
    assert snapshots.path_to(5, among=[]) is None
    assert ring().path_to(6, among=[StepTape(6, why_not_replayable="it is strange")]) is None


def test_too_little_memory_means_one_snapshot_or_none_and_is_reported() -> None:
    one_state = 3 * 4 * (4 + 2)
    single, none = ring(memory_bytes=one_state), ring(memory_bytes=one_state - 1)
    assert single.note is not None
    assert single.note.startswith("one snapshot instead of two")
    assert steps_of(single.path_to(5, among=[], earliest=True)) == [4, 5]
    assert none.note is not None
    assert none.note.startswith("no snapshots, so no replay")
    assert none.latest is None


def test_the_bytes_of_states_are_counted() -> None:
    assert ring(steps=1).num_bytes == 6 * 4
    assert ring(steps=6).num_bytes == 3 * 6 * 4  # the last two, and the first


def test_the_first_state_of_a_small_training_is_kept() -> None:
    snapshots = ring(steps=6)
    first = snapshots.path_from_first()
    assert first is not None
    assert (first[0].step, [tape.step for tape in first[1]]) == (0, [0, 1])
    snapshots.release(keeps_first=True)
    assert snapshots.path_from_first() == first
    assert snapshots.num_bytes == 6 * 4
    snapshots.release()
    assert snapshots.path_from_first() is None
    assert snapshots.num_bytes == 0


def test_a_snapshot_keeps_the_values_of_its_moment() -> None:
    training = Training()
    model = nn.Linear(1, 1, bias=False)
    training.add_model(model)
    snapshots = Snapshots(training, memory_bytes=2**20)
    for step in range(3):
        with torch.no_grad():
            model.weight.fill_(step)
        snapshots.take(step)
        snapshots.add(StepTape(step))
    found = snapshots.path_to(2, among=[], earliest=True)
    assert found is not None
    with found[0].state.swapped_in(training):
        assert model.weight.item() == 1
    assert model.weight.item() == 2


def test_the_last_step_before_a_pause_is_set_aside_until_another_is_taped() -> None:
    snapshots = ring()
    snapshots.set_aside()
    assert snapshots.latest is None
    assert steps_of(snapshots.path_to_last()) == [4, 5]
    kept = snapshots.path_to_last()
    assert kept is not None
    snapshots.take(9)
    assert snapshots.path_to_last() is kept
    snapshots.add(StepTape(9))
    assert not snapshots.has_aside
    assert steps_of(snapshots.path_to_last()) == [9]
    snapshots.take(10)
    assert snapshots.latest is not None
    assert snapshots.latest.state is kept[0].state  # its memory is used again


def test_nothing_is_set_aside_where_the_last_step_cannot_be_rebuilt() -> None:
    snapshots = ring(step5=StepTape(5, why_not_replayable="it is strange"))
    snapshots.set_aside()
    assert snapshots.path_to_last() is None
    ringed = ring()
    ringed.set_aside()
    ringed.release()
    assert ringed.path_to_last() is None
