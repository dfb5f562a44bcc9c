"""What is done about a step: it is recorded by replaying it, and a bad one is replayed until its origin is found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from roundoff.diagnose.nonfinite.origin import find_origin
from roundoff.record.event_selection import EventSelection
from roundoff.record.loop.sites import Sites
from roundoff.record.reference import OpJudge
from roundoff.record.session import Recording
from roundoff.record.source_lines import Sources
from roundoff.replay.generators import Generators
from roundoff.replay.op_catcher import OpCatcher
from roundoff.replay.player import (
    ReplayOutcome,
    all_finite,
    is_reproducible,
    replay_sources,
    replay_steps,
    state_before,
)
from roundoff.replay.rank_consensus import all_agree, exchange, num_ranks
from roundoff.replay.replayed_step import perturb_parameters_, spike_probe
from roundoff.replay.saved.step_inputs import StepInputsWriter
from roundoff.replay.snapshots import Snapshot, Snapshots
from roundoff.replay.state import Training
from roundoff.replay.step_tape import StepTape
from roundoff.runs import Event, ReplayInfo, Run, RunWriter, perturbed_path, replay_path


class Responder:
    """Replays steps: those to be recorded, and those in which something went wrong."""

    def __init__(self, writer: RunWriter, *, training: Training, sites: Sites, snapshots: Snapshots) -> None:
        self.compiles = False
        """Whether the training has compiled anything."""
        self._writer = writer
        self._training = training
        self._sites = sites
        self._snapshots = snapshots
        self._replayed: set[int] = set()

    def record(self, tape: StepTape, *, is_complete: bool) -> ReplayOutcome | None:
        """Replay a step into the events of the run itself; None if it cannot be replayed."""
        path = self._snapshots.path_to(tape.step, among=[tape])
        if path is None:
            return None
        sources = replay_sources()
        session = self._recording(_EventsOnly(self._writer), tape.step, sources, inputs=True, histograms=True)
        outcome = self._run(*path, around_last=session.running, sources=sources, is_complete=is_complete)
        self._check(*path, outcome, is_complete=is_complete)
        if tape.step == 0 and outcome.first_difference is None and outcome.error is None and num_ranks() == 1:
            self._record_perturbed(*path)
        return outcome

    def _record_perturbed(self, snapshot: Snapshot, tapes: list[StepTape]) -> None:
        """Replay a step with its parameters moved by a rounding, into a folder of its own."""
        step = tapes[-1].step
        folder = perturbed_path(self._writer.folder, step=step)
        info = replace(self._writer.info, name=f"step{step}")
        with RunWriter.create(folder, info, rank=self._writer.rank, writes_info=True) as writer:
            session = self._recording(_EventsOnly(writer), step, None, inputs=False)

            @contextlib.contextmanager
            def around() -> Iterator[None]:
                perturb_parameters_(self._training.modules())
                with session.running():
                    yield

            self._run(snapshot, tapes, around_last=around)

    def note_missing(self, tape: StepTape) -> None:
        """Say in the run that a step was not recorded, and why."""
        why = tape.why_not_replayable or "no snapshot leads to it"
        self._writer.note(f"Step {tape.step} could not be recorded: {why}.")

    def _check(self, snapshot: Snapshot, tapes: list[StepTape], outcome: ReplayOutcome, *, is_complete: bool) -> None:
        """Say so if a recorded step did not come out as it had: it does not repeat, or something was not kept."""
        if outcome.error is not None:
            raised = f"{type(outcome.error).__name__}: {outcome.error}"
            self._writer.note(f"Step {outcome.step} could not be recorded whole: replaying it raised {raised}.")
        elif outcome.first_difference is None or self.compiles:
            return
        elif num_ranks() == 1 and not is_reproducible(self._training, snapshot, tapes):
            self._replay_into_folder(snapshot, tapes, is_complete=is_complete)
        else:
            self._writer.note(f"Step {outcome.step} was recorded from a replay {_not_kept(outcome)}.")

    def investigate(self, step: int, open_tape: StepTape, *, is_complete: bool) -> int | None:
        """Replay the step in which it began into a folder of its own and catch the origin; return that step.

        A weight that is not finite may be older than the anomaly that it led to: the search begins with the earliest
        step that can be rebuilt and ends at the first that left bad values.
        """
        path = self._snapshots.path_to(step, among=[open_tape], earliest=True)
        if path is None:
            return None
        snapshot, tapes = path
        is_fine = all_finite([kept for _, kept in snapshot.state.tensors])
        if not all_agree(f"fine-{step}", str(is_fine)) or not is_fine:
            return None  # it began before anything that is still known
        first = self._first_bad_step(snapshot, tapes)
        if first < step:
            tapes = [tape for tape in tapes if tape.step <= first]
        self._replay_into_folder(snapshot, tapes, is_complete=is_complete and first == step)
        return first

    def sort_spike(self, step: int, open_tape: StepTape) -> None:
        """Write down whether the batch of a step whose loss jumped is to blame, or the state; one rank alone can."""
        path = self._snapshots.path_to(step, among=[open_tape], earliest=True)
        if path is None or num_ranks() > 1:
            return
        with contextlib.suppress(Exception):  # code of the user that takes only what it is used to
            found = spike_probe(self._training, *path, self._sites)
            if found is not None:
                self._writer.write_probe({"step": step, **found})

    def _first_bad_step(self, snapshot: Snapshot, tapes: list[StepTape]) -> int:
        """Return the first step that left bad weights or buffers on any rank; the last if none before it did."""
        last = tapes[-1].step
        if len(tapes) == 1:
            return last
        outcome = self._run(snapshot, tapes, until_bad=num_ranks() == 1)
        mine = last if outcome.first_bad_step is None else outcome.first_bad_step
        steps = exchange(f"first-bad-{last}", str(mine))
        return mine if steps is None else min(map(int, steps))

    def undo(self, tape: StepTape, *, generators: Generators | None) -> bool:
        """Put the training back to where it was before the step, generators included; False if that cannot be done."""
        path = self._snapshots.path_to(tape.step, among=[tape])
        if path is None:
            return False
        before = state_before(self._training, *path)
        before.install(self._training)
        if generators is not None:
            generators.restore()
        return True

    def _replay_into_folder(self, snapshot: Snapshot, tapes: list[StepTape], *, is_complete: bool) -> None:
        step = tapes[-1].step
        folder = replay_path(self._writer.folder, step=step)
        if step in self._replayed:
            return  # a later step went bad because of this one, which is known already
        self._replayed.add(step)
        writer = RunWriter.create(
            folder, replace(self._writer.info, name=f"step{step}"), rank=self._writer.rank, writes_info=True
        )
        sources = replay_sources()
        session = self._recording(writer, step, sources, inputs=True, histograms=True)
        before = StepInputsWriter(writer, self._training, self._sites)

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            before.write_state()
            with session.running():
                yield

        outcome = self._run(snapshot, tapes, around_last=around, sources=sources, is_complete=is_complete)
        before.write_batch(tapes[-1])
        is_fault = outcome.first_difference is None or num_ranks() > 1
        is_fault = is_fault or not is_reproducible(self._training, snapshot, tapes)
        writer.write(_info(snapshot, outcome, is_eager=self.compiles, is_fault=is_fault))
        place = find_origin(Run.open(folder), step=step, rank=self._writer.rank)
        bad = place.bad if place is not None and place.kind == "op" else None
        if "True" in (exchange(f"catch-{step}", str(bad is not None)) or ()):
            self._catch(bad, snapshot, tapes, writer)

    def _catch(self, bad: Event | None, snapshot: Snapshot, tapes: list[StepTape], writer: RunWriter) -> None:
        """Replay once more and keep the op that made the bad value; a rank that has none goes along."""
        if bad is None:
            self._run(snapshot, tapes)
            return
        sources = replay_sources()
        catcher = OpCatcher(bad, writer=writer)
        session = self._recording(_Nothing(writer), tapes[-1].step, sources, inputs=True, judge=catcher)
        catcher.num_rows = lambda: session.num_rows
        self._run(snapshot, tapes, around_last=session.running, sources=sources)

    def _recording(
        self,
        writer: Any,
        step: int,
        sources: Sources | None,
        *,
        inputs: bool,
        histograms: bool = False,
        judge: OpJudge | None = None,
    ) -> Recording:
        return Recording(
            writer=writer,
            selection=EventSelection.of(steps=None, sites=None, ops=None, phases=None),
            sites=self._sites,
            with_tensors=False,
            inputs=inputs,
            histograms=histograms,
            reference=judge,
            sources=sources,
            strict=False,
            first_step=step,
        )

    def _run(self, snapshot: Snapshot, tapes: list[StepTape], **settings: Any) -> ReplayOutcome:
        return replay_steps(self._training, snapshot, tapes, **settings)


class _EventsOnly:
    """A run writer for a recording that shall write events into a run that goes on: calls and metrics are there."""

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def write(self, record: Any) -> None:
        """Nothing: calls and metrics are in the run already."""

    def close(self, *, status: str) -> None:
        """Nothing: the run goes on."""


class _Nothing(_EventsOnly):
    """A run writer for a recording of which only one op is wanted."""

    def write_events(self, columns: Any) -> None:
        """Nothing."""

    def write_hashes(self, columns: Any) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


def _not_kept(outcome: ReplayOutcome) -> str:
    return (
        f"that came out differently ({outcome.first_difference} differs first), though it repeats: the step depends on "
        "something that is not kept, such as a variable of the script"
    )


def _info(snapshot: Snapshot, outcome: ReplayOutcome, *, is_eager: bool, is_fault: bool) -> ReplayInfo:
    note = None if outcome.error is None else f"the replay raised {type(outcome.error).__name__}: {outcome.error}"
    if not is_fault:
        note = f"a replay {_not_kept(outcome)}"
    is_checked = outcome.error is None and is_fault
    return ReplayInfo(
        step=outcome.step,
        snapshot_step=snapshot.step,
        is_identical=outcome.first_difference is None if is_checked else None,
        first_difference=outcome.first_difference,
        is_eager=is_eager,
        note=note,
    )
