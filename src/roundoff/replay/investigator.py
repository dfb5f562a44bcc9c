"""What is done about a step that has ended: the first are recorded, a bad one is replayed until its origin is found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from roundoff.diagnose.nonfinite.origin import find_origin
from roundoff.record.event_selection import RecordingSettings
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
from roundoff.replay.rank_consensus import ReplayRequests, all_agree, exchange, num_ranks
from roundoff.replay.replayed_step import ReplayedCodeRaised, perturb_parameters_, spike_probe
from roundoff.replay.saved.step_inputs import StepInputsWriter
from roundoff.replay.snapshots import Snapshot, Snapshots
from roundoff.replay.state import Training
from roundoff.replay.step_tape import StepTape
from roundoff.runs import Anomaly, Event, Failure, ReplayInfo, Run, RunWriter, perturbed_path, replay_path

OnAnomaly: TypeAlias = Literal["report", "stop", "skip"]

ReplayPath: TypeAlias = tuple[Snapshot, list[StepTape]]
"""Where a replay starts, and the steps it goes through; the last is the one that matters."""

_EVERYTHING = RecordingSettings(inputs=True, histograms=True)


class TrainingStopped(SystemExit):
    """The watch ends the training, because it was told to stop at an anomaly."""


class Investigator:
    """Decides what a step that has ended calls for, together with the other ranks, and does it.

    Args:
        writer: of the run that is watched.
        training: whose steps are replayed.
        sites: names for modules and parameters.
        snapshots: what replays start from.
        replaying: a block in which the training is not watched.
        on_anomaly: report: replay, note and go on; stop: end the training; skip: undo the step and go on.
        recorded_steps: steps whose ops are recorded, in a replay.
        max_replays: at most this many anomalies are replayed.
    """

    def __init__(
        self,
        writer: RunWriter,
        *,
        training: Training,
        sites: Sites,
        snapshots: Snapshots,
        replaying: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        on_anomaly: OnAnomaly = "report",
        recorded_steps: Sequence[int] = (0, 1),
        max_replays: int = 3,
    ) -> None:
        self.compiles = False
        """Whether the training has compiled anything."""
        self.num_undone = 0
        """How many steps were undone."""
        self.complaint: str | None = None
        """Why a step could not be undone, if one could not."""
        self._writer = writer
        self._training = training
        self._sites = sites
        self._snapshots = snapshots
        self._replaying = replaying
        self._on_anomaly = on_anomaly
        self._recorded_steps = recorded_steps
        self._max_replays = max_replays
        self._requests = ReplayRequests(writer.folder)
        self._num_replays = 0
        self._replayed: set[int] = set()
        self._generators: Generators | None = None

    def begin(self) -> None:
        """Take note that the first step begins."""
        if self._on_anomaly == "skip":
            self._generators = Generators.now()

    def request(self, step: int) -> None:
        """Ask the other ranks to replay this step together when it has ended: its loss is bad."""
        if num_ranks() > 1:
            self._requests.ask(step, at=step)

    def handle(self, tape: StepTape, anomalies: Sequence[Anomaly], *, is_complete: bool) -> None:
        """Record or investigate the step that has ended, and stop or undo it as the settings say.

        Args:
            tape: what the loop did in the step so far.
            anomalies: what was seen in it.
            is_complete: whether the optimizer has stepped, so that the replay can be compared to the end.
        """
        seen = [anomaly for anomaly in anomalies if anomaly.kind != "exception"]
        wanted = tape.step if _raised_alone(anomalies) else self._step_to_investigate(tape.step, seen)
        if wanted is not None:
            is_spike = any(anomaly.kind == "spike" for anomaly in seen)
            self._investigate_together(wanted, tape, is_complete=is_complete, is_spike=is_spike)
        elif tape.step in self._recorded_steps and not seen:
            self._record_together(tape, is_complete=is_complete)
        if seen and self._on_anomaly == "stop":
            raise TrainingStopped(1)
        if self._on_anomaly == "skip":
            if _must_undo(seen):
                self._undo_or_complain(tape)
            self._generators = Generators.now()

    # -- what a step calls for -----------------------------------------------------------------------------------------

    def _step_to_investigate(self, step: int, anomalies: Sequence[Anomaly]) -> int | None:
        """Return the step to be replayed now, if any; several ranks go by what one of them asked for.

        A bad loss is known before the gradients are exchanged, so every rank sees the request when this step ends. What
        shows later is replayed when all have ended the step after.
        """
        if num_ranks() == 1:
            return step if anomalies else None
        wanted = self._requests.at(step)
        if anomalies and wanted is None:
            self._requests.ask(step, at=step + 1)
        return wanted

    def _investigate_together(self, step: int, open_tape: StepTape, *, is_complete: bool, is_spike: bool) -> None:
        if self._num_replays >= self._max_replays:
            return
        self._num_replays += 1
        path = self._snapshots.path_to(step, among=[open_tape], earliest=True)
        if all_agree(f"investigate-{step}", _describe_path(path)) and path is not None:
            with self._replaying():
                self.investigate(path, is_complete=is_complete and step == open_tape.step)
                if is_spike:
                    self._probe_spike(path)

    def _record_together(self, tape: StepTape, *, is_complete: bool) -> None:
        path = self._snapshots.path_to(tape.step, among=[tape])
        if all_agree(f"record-{tape.step}", _describe_path(path)) and path is not None:
            with self._replaying():
                self.record(path, is_complete=is_complete)
        else:
            why = tape.why_not_replayable or "no snapshot leads to it"
            self._writer.note(f"Step {tape.step} could not be recorded: {why}.")

    def _undo_or_complain(self, tape: StepTape) -> None:
        path = self._snapshots.path_to(tape.step, among=[tape])
        if path is None:
            self.complaint = self.complaint or f"step {tape.step} could not be undone: no snapshot leads to it."
            return
        with self._replaying():
            self.undo(path)
        self.num_undone += 1
        self._snapshots.forget()

    # -- recording -----------------------------------------------------------------------------------------------------

    def record(self, path: ReplayPath, *, is_complete: bool) -> ReplayOutcome:
        """Replay a step into the events of the run itself."""
        step = path[1][-1].step
        sources = replay_sources()
        session = self._recording(_EventsOnly(self._writer), step, _EVERYTHING, sources=sources)
        outcome = replay_steps(
            self._training, *path, around_last=session.running, sources=sources, is_complete=is_complete
        )
        self._check(path, outcome, is_complete=is_complete)
        if step == 0 and outcome.first_difference is None and outcome.error is None and num_ranks() == 1:
            self._record_perturbed(path)
        return outcome

    def _record_perturbed(self, path: ReplayPath) -> None:
        """Replay a step with its parameters moved by a rounding, into a folder of its own."""
        step = path[1][-1].step
        folder = perturbed_path(self._writer.folder, step=step)
        info = replace(self._writer.info, name=f"step{step}")
        with RunWriter.create(folder, info, rank=self._writer.rank, writes_info=True) as writer:
            session = self._recording(_EventsOnly(writer), step, RecordingSettings())

            @contextlib.contextmanager
            def around() -> Iterator[None]:
                perturb_parameters_(self._training.modules())
                with session.running():
                    yield

            replay_steps(self._training, *path, around_last=around)

    def _check(self, path: ReplayPath, outcome: ReplayOutcome, *, is_complete: bool) -> None:
        """Say so if a recorded step did not come out as it had: it does not repeat, or something was not kept."""
        if outcome.error is not None:
            raised = f"{type(outcome.error).__name__}: {outcome.error}"
            self._writer.note(f"Step {outcome.step} could not be recorded completely: replaying it raised {raised}.")
        elif outcome.first_difference is None or self.compiles:
            return
        elif num_ranks() == 1 and not is_reproducible(self._training, *path):
            self._replay_into_folder(path, is_complete=is_complete)
        else:
            self._writer.note(f"Step {outcome.step} was recorded from a replay {_describe_difference(outcome)}.")

    # -- investigating -------------------------------------------------------------------------------------------------

    def investigate(self, path: ReplayPath, *, is_complete: bool) -> int | None:
        """Replay the step in which it began into a folder of its own and catch the origin; return that step.

        A weight that is not finite may be older than the anomaly that it led to: the search begins with the earliest
        step that can be rebuilt and ends at the first that left bad values. None if that is older still.
        """
        snapshot, tapes = path
        step = tapes[-1].step
        is_fine = all_finite([kept for _, kept in snapshot.state.tensors])
        if not all_agree(f"fine-{step}", str(is_fine)) or not is_fine:
            return None
        first = self._first_bad_step(path)
        if first < step:
            tapes = [tape for tape in tapes if tape.step <= first]
        self._replay_into_folder((snapshot, tapes), is_complete=is_complete and first == step)
        return first

    def _first_bad_step(self, path: ReplayPath) -> int:
        """Return the first step that left bad weights or buffers on any rank; the last if none before it did."""
        last = path[1][-1].step
        if len(path[1]) == 1:
            return last
        outcome = replay_steps(self._training, *path, until_bad=num_ranks() == 1)
        mine = last if outcome.first_bad_step is None else outcome.first_bad_step
        steps = exchange(f"first-bad-{last}", str(mine))
        return mine if steps is None else min(map(int, steps))

    def _probe_spike(self, path: ReplayPath) -> None:
        """Write down whether the batch of a step whose loss jumped is to blame, or the state; one rank alone can."""
        if num_ranks() > 1:
            return
        step = path[1][-1].step
        try:
            found = spike_probe(self._training, *path, self._sites)
        except ReplayedCodeRaised:
            return  # the user's code may accept only the batches it is used to
        except Exception as error:
            self._writer.write(Failure.of(error, check="probe", name="spike", step=step))
            return
        if found is not None:
            self._writer.write_probe({"step": step, **found})

    def _replay_into_folder(self, path: ReplayPath, *, is_complete: bool) -> None:
        snapshot, tapes = path
        step = tapes[-1].step
        if step in self._replayed:
            return  # a later step went bad because of this one, which is known already
        self._replayed.add(step)
        folder = replay_path(self._writer.folder, step=step)
        info = replace(self._writer.info, name=f"step{step}")
        writer = RunWriter.create(folder, info, rank=self._writer.rank, writes_info=True)
        sources = replay_sources()
        session = self._recording(writer, step, _EVERYTHING, sources=sources)
        inputs = StepInputsWriter(writer, self._training, self._sites)

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            inputs.write_state()
            with session.running():
                yield

        outcome = replay_steps(self._training, *path, around_last=around, sources=sources, is_complete=is_complete)
        inputs.write_batch(tapes[-1])
        is_fault = outcome.first_difference is None or num_ranks() > 1
        is_fault = is_fault or not is_reproducible(self._training, *path)
        writer.write(_replay_info(snapshot, outcome, is_eager=self.compiles, is_fault=is_fault))
        place = find_origin(Run.open(folder), step=step, rank=self._writer.rank)
        bad = place.bad if place is not None and place.kind == "op" else None
        if "True" in (exchange(f"catch-{step}", str(bad is not None)) or ()):
            self._catch(bad, path, writer)

    def _catch(self, bad: Event | None, path: ReplayPath, writer: RunWriter) -> None:
        """Replay once more and keep the op that made the bad value; a rank that has none goes along."""
        if bad is None:
            replay_steps(self._training, *path)
            return
        sources = replay_sources()
        catcher = OpCatcher(bad, writer=writer)
        step = path[1][-1].step
        session = self._recording(
            _Nothing(writer), step, RecordingSettings(inputs=True), sources=sources, judge=catcher
        )
        catcher.num_rows = lambda: session.num_rows
        replay_steps(self._training, *path, around_last=session.running, sources=sources)

    def _recording(
        self,
        writer: Any,
        step: int,
        settings: RecordingSettings,
        *,
        sources: Sources | None = None,
        judge: OpJudge | None = None,
    ) -> Recording:
        return Recording(writer, settings, sites=self._sites, judge=judge, sources=sources, first_step=step)

    # -- undoing -------------------------------------------------------------------------------------------------------

    def undo(self, path: ReplayPath) -> None:
        """Put the training back to where it was before the last step of the path, generators included."""
        state_before(self._training, *path).install(self._training)
        if self._generators is not None:
            self._generators.restore()


class _EventsOnly:
    """A run writer for a recording that adds only events to a run: calls and metrics are there already."""

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


def _raised_alone(anomalies: Sequence[Anomaly]) -> bool:
    """Say whether the step raised something a replay can show: it must not run out of memory a second time.

    Where one of several ranks raises, the others may be anywhere: they cannot replay together.
    """
    raised = [anomaly.name for anomaly in anomalies if anomaly.kind == "exception"]
    return bool(raised) and num_ranks() == 1 and not {"OutOfMemoryError", "MemoryError"} & set(raised)


def _must_undo(anomalies: Sequence[Anomaly]) -> bool:
    """Say whether a step is to be undone; among several ranks only for what all of them see alike."""
    shared = ("gradient", "weight")
    return any(num_ranks() == 1 or anomaly.kind in shared for anomaly in anomalies)


def _describe_path(path: ReplayPath | None) -> str:
    """Say from where to where a replay leads: ranks replay together only if that is the same on all."""
    return "nowhere" if path is None else f"{path[0].step} to {path[1][-1].step}"


def _describe_difference(outcome: ReplayOutcome) -> str:
    return (
        f"that came out differently ({outcome.first_difference} differs first), though it repeats: the step depends on "
        "something that is not kept, such as a variable of the script"
    )


def _replay_info(snapshot: Snapshot, outcome: ReplayOutcome, *, is_eager: bool, is_fault: bool) -> ReplayInfo:
    note = None if outcome.error is None else f"the replay raised {type(outcome.error).__name__}: {outcome.error}"
    if not is_fault:
        note = f"a replay {_describe_difference(outcome)}"
    is_checked = outcome.error is None and is_fault
    return ReplayInfo(
        step=outcome.step,
        snapshot_step=snapshot.step,
        is_identical=outcome.first_difference is None if is_checked else None,
        first_difference=outcome.first_difference,
        is_eager=is_eager,
        note=note,
    )
