"""What is done about a step that has ended: the first are recorded, a bad one is replayed until its origin is found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from roundoff.diagnose.nonfinite.origin import find_origin
from roundoff.errors import RunFolderError
from roundoff.progress import announcing
from roundoff.record.accelerator import Generators
from roundoff.record.event_selection import RecordingSettings
from roundoff.record.loop.sites import Sites
from roundoff.record.reference import OpJudge
from roundoff.record.session import Recording
from roundoff.record.source_lines import Sources
from roundoff.replay.arguments import NotReplayable
from roundoff.replay.op_catcher import OpCatcher
from roundoff.replay.own_time import own_seconds
from roundoff.replay.player import (
    ReplayOutcome,
    all_finite,
    is_reproducible,
    replay_sources,
    replay_steps,
    state_before,
)
from roundoff.replay.rank_consensus import RankConsensus, RanksApart, ReplayRequests
from roundoff.replay.replayed_step import (
    ReplayedCodeRaised,
    ReplayedStep,
    forward_facts,
    perturb_parameters_,
    spike_probe,
)
from roundoff.replay.saved.step_inputs import StepInputsWriter
from roundoff.replay.snapshots import ReplayPath, Snapshots, why_no_room
from roundoff.replay.state import Training
from roundoff.replay.step_tape import StepTape, estimate_ops
from roundoff.replay.what_if import try_changes
from roundoff.runs import Anomaly, Event, Failure, Gap, ReplayInfo, Run, RunWriter, perturbed_path, replay_path

OnAnomaly: TypeAlias = Literal["report", "stop", "skip"]

_EVERYTHING = RecordingSettings(inputs=True, histograms=True)
_FIRST_CALLS_SECONDS = 1.5
"""CPU time of step 0 in which torch imports what its first optimizer needs, and which a replay does not need again."""
_MIN_RECORD_SECONDS, _MAX_RECORD_SECONDS, _RECORD_RATIO = 1.5, 5.0, 8.0
"""CPU time that recording one of the first steps may take: this many times that of the step, within limits."""


_WHAT_IF_SECONDS = 3.0
"""CPU time for which the steps before a bad one are played with something changed."""


class TrainingStopped(SystemExit):
    """The watch ends the training, because it is configured to stop at an anomaly."""


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
        self.left_out: list[str] = []
        """What was not recorded or replayed because it would have taken too long."""
        self.gap: Gap | None = None
        """What to report once the ranks no longer replay together."""
        self._writer = writer
        self._training = training
        self._sites = sites
        self._snapshots = snapshots
        self._replaying = replaying
        self._on_anomaly = on_anomaly
        self._recorded_steps = recorded_steps
        self._max_replays = max_replays
        self.ranks = RankConsensus(writer.folder)
        self._requests = ReplayRequests(writer.folder)
        self._num_replays = 0
        self._lacks_room = False
        self._max_record_seconds = _MAX_RECORD_SECONDS
        self._replayed: set[int] = set()
        self._tried: set[int] = set()
        self._generators: Generators | None = None

    def begin(self) -> None:
        """Note that the first step begins."""
        if self._on_anomaly == "skip":
            self._generators = Generators.now()

    def request(self, step: int) -> None:
        """Ask the other ranks to replay this step together when it has ended: its loss is bad."""
        if self.ranks.several:
            self._requests.ask(step, at=step)

    def wanted_at(self, step: int) -> int | None:
        """Return the step that a rank wants to have replayed by all when `step` has ended, if there is one."""
        return self._requests.at(step)

    def leave(self, why: str) -> None:
        """Tell the other ranks that this one does not replay any more, so that they do not either."""
        self.ranks.lose(f"rank {self._writer.rank} {why}")

    def handle(self, tape: StepTape, anomalies: Sequence[Anomaly], *, is_complete: bool, seconds: float = 0.0) -> None:
        """Record or investigate the step that has ended, and stop or undo it as the settings say.

        Args:
            tape: what the loop did in the step so far.
            anomalies: what was seen in it.
            is_complete: whether the optimizer has stepped, so that the replay can be compared to the end.
            seconds: what the step took, by which it is judged how long recording it will take.
        """
        seen = [anomaly for anomaly in anomalies if anomaly.kind != "exception"]
        wanted = tape.step if self._has_raised_alone(anomalies) else self._step_to_investigate(tape, seen)
        if wanted is not None:
            is_spike = any(anomaly.kind == "spike" for anomaly in seen)
            self._investigate_together(wanted, tape, is_complete=is_complete, is_spike=is_spike)
        elif tape.step in self._recorded_steps and not seen:
            self._record_together(tape, is_complete=is_complete, seconds=seconds)
        self._note_loss()
        if seen and self._on_anomaly == "stop":
            raise TrainingStopped(1)
        if self._on_anomaly == "skip":
            if self._must_undo([anomaly for anomaly in seen if anomaly.step == tape.step]):
                self._undo_or_complain(tape)
            self._generators = Generators.now()

    # -- what a step calls for -----------------------------------------------------------------------------------------

    def _step_to_investigate(self, tape: StepTape, anomalies: Sequence[Anomaly]) -> int | None:
        """Return the step to be replayed now, if any; several ranks follow the request of one of them.

        The loss of an accelerator may be that of an earlier step, which is replayed if it still can be.
        A bad loss is known before the gradients are exchanged, so every rank sees the request when this step ends. What
        shows later is replayed when all have ended the step after.
        """
        step = tape.step
        if not self.ranks.several:
            of_losses = [anomaly.step for anomaly in anomalies if anomaly.kind in ("loss", "spike")]
            earliest = min(of_losses, default=step)
            if earliest < step and self._snapshots.path_to(earliest, among=[tape]) is not None:
                return earliest
            return step if anomalies else None
        wanted = self.wanted_at(step)
        if anomalies and wanted is None:
            self._requests.ask(step, at=step + 1)
        return wanted

    def _investigate_together(self, step: int, open_tape: StepTape, *, is_complete: bool, is_spike: bool) -> None:
        if self._num_replays >= self._max_replays:
            return
        self._num_replays += 1
        path = self._path_to(step, open_tape, earliest=True)
        if self._all_agree(f"investigate-{step}", _describe_path(path)) and path is not None:
            with announcing(f"replaying step {step}"), self._replaying():
                first = self.investigate(path, is_complete=is_complete and step == open_tape.step)
                if is_spike:
                    self._probe_spike(path)
                if first is not None and first not in self._tried and not self.ranks.several:
                    self._tried.add(first)
                    self._try_changes((path[0], [tape for tape in path[1] if tape.step <= first]), is_spike=is_spike)
        elif step == open_tape.step and open_tape.why_not_replayable is not None:
            self.left_out.append(f"step {step} could not be replayed: {open_tape.why_not_replayable}.")

    def _path_to(self, step: int, open_tape: StepTape, *, earliest: bool = False) -> ReplayPath | None:
        """Return what leads to a step; None where the devices have no room for it, which is reported once."""
        path = self._snapshots.path_to(step, among=[open_tape], earliest=earliest)
        why = None if path is None else why_no_room(self._training)
        if why is not None and not self._lacks_room:
            self._lacks_room = True
            self._leave_out(f"Step {step} and others cannot be replayed: {why}.")
        return path if why is None else None

    def _record_together(self, tape: StepTape, *, is_complete: bool, seconds: float) -> None:
        path = self._path_to(tape.step, tape)
        if self._all_agree(f"record-{tape.step}", _describe_path(path)) and path is not None:
            settings = _EVERYTHING if self.ranks.several else self._affordable_settings(tape, seconds)
            if settings is not None:
                with announcing(f"recording step {tape.step}"), self._replaying():
                    self.record(path, is_complete=is_complete, settings=settings)
        elif self.ranks.lost is None and not self._lacks_room:
            why = tape.why_not_replayable or "no snapshot leads to it"
            self._writer.note(f"Step {tape.step} could not be recorded: {why}.")

    def _affordable_settings(self, tape: StepTape, seconds: float) -> RecordingSettings | None:
        """Return what of a step's ops can be recorded in time, or None; what is left out is noted."""
        num_ops = estimate_ops(tape)
        limit = min(max(_RECORD_RATIO * seconds, _MIN_RECORD_SECONDS), _MAX_RECORD_SECONDS)
        self._max_record_seconds = limit
        allowed = f"{limit:.2g} s are allowed"
        if self.compiles:
            seconds = 0.0  # most of it was the compiler's, which a replay does without
        elif tape.step == 0:
            seconds = max(seconds - _FIRST_CALLS_SECONDS, 0.0)
        wanted = 3 * seconds + num_ops * 0.5e-3
        if wanted <= limit:
            return _EVERYTHING
        if 1.5 * seconds + num_ops * 0.2e-3 <= limit:
            what = "without inputs and histograms"
            self._leave_out(
                f"Step {tape.step} is recorded {what}: they would take about {wanted:.0f} s, and {allowed}."
            )
            return RecordingSettings()
        self._leave_out(f"Step {tape.step} is not recorded: that would take about {wanted:.0f} s, and {allowed}.")
        return None

    def _leave_out(self, text: str) -> None:
        self._writer.note(text)
        self.left_out.append(text[0].lower() + text[1:])

    def _undo_or_complain(self, tape: StepTape) -> None:
        path = self._path_to(tape.step, tape)
        is_undone = False
        if self._all_agree(f"undo-{tape.step}", _describe_path(path)) and path is not None:
            with self._replaying():
                is_undone = self.undo(path)
        if is_undone:
            self.num_undone += 1
            self._snapshots.forget()
        else:
            why = self.ranks.lost or "no snapshot leads to it"
            self.complaint = self.complaint or f"step {tape.step} could not be undone: {why}."

    def _note_loss(self) -> None:
        if self.ranks.several and self.ranks.lost is not None and self.gap is None:
            self.gap = Gap(kind="replays", why=self.ranks.lost, rank=self._writer.rank)
            self._writer.write(self.gap)

    def _all_agree(self, what: str, value: str) -> bool:
        """Return whether all ranks can do the same thing now; a rank that cannot write the run any more cannot."""
        if self.ranks.several and self._writer.stopped is not None:
            self.leave(f"stopped recording: {self._writer.stopped}")
        return self.ranks.all_agree(what, value)

    def _has_raised_alone(self, anomalies: Sequence[Anomaly]) -> bool:
        """Return whether the step raised something a replay can show: it must not run out of memory a second time.

        Where one of several ranks raises, the others may be anywhere: they cannot replay together.
        """
        raised = [anomaly.name for anomaly in anomalies if anomaly.kind == "exception"]
        return bool(raised) and not self.ranks.several and not {"OutOfMemoryError", "MemoryError"} & set(raised)

    def _must_undo(self, anomalies: Sequence[Anomaly]) -> bool:
        """Return whether a step is to be undone; among several ranks only for what all of them see alike."""
        return any(not self.ranks.several or anomaly.kind in ("gradient", "weight") for anomaly in anomalies)

    # -- recording -----------------------------------------------------------------------------------------------------

    def record(
        self, path: ReplayPath, *, is_complete: bool, settings: RecordingSettings = _EVERYTHING
    ) -> ReplayOutcome:
        """Replay a step into the events of the run itself."""
        step = path[1][-1].step
        sources = replay_sources()
        began = own_seconds()
        session = self._recording(_EventsOnly(self._writer), step, settings, sources=sources)
        outcome = replay_steps(
            self._training,
            *path,
            around_last=session.running,
            sources=sources,
            is_complete=is_complete,
            gate=self.ranks.gate(f"record-{step}"),
        )
        self._check(path, outcome, is_complete=is_complete)
        if not self.ranks.several:
            self._see_forward(path)
        if step == 0 and outcome.first_difference is None and outcome.error is None and not self.ranks.several:
            if 2 * (own_seconds() - began) <= self._max_record_seconds:
                self._record_perturbed(path)
            else:
                self._leave_out("Step 0 is not recorded a second time with rounded weights: the first took too long.")
        return outcome

    def _see_forward(self, path: ReplayPath) -> None:
        """Write down what the loss functions of a step are fed with, and which whole numbers it loses."""
        try:
            for fact in forward_facts(ReplayedStep(self._training, *path, self._sites)):
                self._writer.write(fact)
        except ReplayedCodeRaised:
            return  # the forward alone may not do what the whole step does
        except Exception as error:
            self._writer.write(Failure.of(error, check="fact", name="forward", step=path[1][-1].step))

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
        """Note it if a recorded step differs from the original: it is not deterministic, or something was not kept."""
        if outcome.error is not None:
            raised = f"replaying it raised {type(outcome.error).__name__}: {outcome.error}"
            if isinstance(outcome.error, NotReplayable):
                raised = f"{outcome.error}: {_why_different(path[1][-1])}"
            self._writer.note(f"Step {outcome.step} could not be recorded completely: {raised}.")
        elif outcome.first_difference is None or self.compiles:
            return
        elif not self.ranks.several and not is_reproducible(self._training, *path):
            self._replay_into_folder(path, is_complete=is_complete)
        else:
            why = _describe_difference(outcome, path[1][-1])
            self._writer.note(f"Step {outcome.step} was recorded from a replay {why}.")

    # -- investigating -------------------------------------------------------------------------------------------------

    def investigate(self, path: ReplayPath, *, is_complete: bool) -> int | None:
        """Replay the step in which it began into a folder of its own and catch the origin; return that step.

        A weight that is not finite may be older than the anomaly that it led to: the search begins with the earliest
        step that can be rebuilt and ends at the first that left bad values. None if that is older still.
        """
        snapshot, tapes = path
        step = tapes[-1].step
        is_fine = all_finite([kept for _, kept in snapshot.state.tensors])
        if not self._all_agree(f"fine-{step}", str(is_fine)) or not is_fine:
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
        gate = self.ranks.gate(f"search-{last}")
        outcome = replay_steps(self._training, *path, until_bad=gate is None, gate=gate)
        mine = last if outcome.first_bad_step is None else outcome.first_bad_step
        steps = self.ranks.exchange(f"first-bad-{last}", str(mine))
        return mine if steps is None else min(map(int, steps))

    def _probe_spike(self, path: ReplayPath) -> None:
        """Measure whether the batch or the state made a loss jump; only without other ranks."""
        if self.ranks.several:
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
            self._writer.write(found)

    def _try_changes(self, path: ReplayPath, *, is_spike: bool) -> None:
        """Play the steps that led to a bad one with one thing changed at a time, and write the results."""
        step, until = path[1][-1].step, own_seconds() + _WHAT_IF_SECONDS
        try:
            for found in try_changes(
                self._training, path, self._sites, bad_site=self._bad_site(step), is_spike=is_spike, until=until
            ):
                self._writer.write(found)
        except Exception as error:
            self._writer.write(Failure.of(error, check="probe", name="what-if", step=step))

    def _bad_site(self, step: int) -> str | None:
        """Return where the first bad value of a replayed step was computed, if an op computed it."""
        if step not in self._replayed:
            return None
        place = find_origin(Run.open(replay_path(self._writer.folder, step=step)), step=step, rank=self._writer.rank)
        return place.site if place is not None and place.kind == "op" else None

    def _replay_into_folder(self, path: ReplayPath, *, is_complete: bool) -> None:
        tapes = path[1]
        step = tapes[-1].step
        if step in self._replayed:
            return  # a later step went bad because of this one, which is known already
        self._replayed.add(step)
        writer = self._create_replay_writer(step)
        if not self._all_agree(f"write-{step}", "ready") or writer is None:
            return
        sources = replay_sources()
        session = self._recording(writer, step, _EVERYTHING, sources=sources)
        inputs = StepInputsWriter(writer, self._training, self._sites)

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            inputs.write_state()
            with session.running():
                yield

        outcome = replay_steps(
            self._training,
            *path,
            around_last=around,
            sources=sources,
            is_complete=is_complete,
            gate=self.ranks.gate(f"replay-{step}"),
        )
        if isinstance(outcome.error, RanksApart):
            return
        inputs.write_batch(tapes[-1])
        is_fault = outcome.first_difference is None or self.ranks.several
        is_fault = is_fault or not is_reproducible(self._training, *path)
        writer.write(_replay_info(path, outcome, is_eager=self.compiles, is_fault=is_fault))
        place = find_origin(Run.open(writer.folder), step=step, rank=self._writer.rank)
        bad = place.bad if place is not None and place.kind == "op" else None
        if "True" in (self.ranks.exchange(f"catch-{step}", str(bad is not None)) or ()):
            self._catch(bad, path, writer)

    def _create_replay_writer(self, step: int) -> RunWriter | None:
        """Create the folder of a replayed step; a rank of several that cannot says so before anything is replayed."""
        folder = replay_path(self._writer.folder, step=step)
        info = replace(self._writer.info, name=f"step{step}")
        try:
            return RunWriter.create(folder, info, rank=self._writer.rank, writes_info=True)
        except RunFolderError as error:
            if not self.ranks.several:
                raise
            self.leave(f"cannot write a replay: {error.args[0].splitlines()[0]}")
            return None

    def _catch(self, bad: Event | None, path: ReplayPath, writer: RunWriter) -> None:
        """Replay once more and keep the op that made the bad value; a rank that has none replays too."""
        step = path[1][-1].step
        gate = self.ranks.gate(f"catch-{step}-again")
        if bad is None:
            replay_steps(self._training, *path, gate=gate)
            return
        sources = replay_sources()
        catcher = OpCatcher(bad, writer=writer)
        session = self._recording(
            _Nothing(writer), step, RecordingSettings(inputs=True), sources=sources, judge=catcher
        )
        catcher.num_rows = lambda: session.num_rows
        replay_steps(self._training, *path, around_last=session.running, sources=sources, gate=gate)

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

    def undo(self, path: ReplayPath) -> bool:
        """Put the training back to where it was before the last step of the path, generators included.

        Several ranks do so only when all of them have rebuilt that state; return whether it was done.
        """
        step, state = path[1][-1].step, None
        with contextlib.suppress(RanksApart):
            state = state_before(self._training, *path, gate=self.ranks.gate(f"rebuild-{step}"))
        if not self._all_agree(f"install-{step}", "ready") or state is None:
            return False
        state.install(self._training)
        if self._generators is not None:
            self._generators.restore()
        return True


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


def _describe_path(path: ReplayPath | None) -> str:
    """Return where a replay starts and ends: ranks replay together only if that is the same on all."""
    return "nowhere" if path is None else f"{path[0].step} to {path[1][-1].step}"


def _describe_difference(outcome: ReplayOutcome, tape: StepTape) -> str:
    why = _why_different(tape)
    return f"that came out differently ({outcome.first_difference} differs first), though it repeats: {why}"


def _why_different(tape: StepTape) -> str:
    if any(external.cuts_graph for external in tape.external):
        return "a tensor in it was computed by code that the tape does not see, such as a custom autograd function"
    return "the step depends on something that is not kept, such as a variable of the script"


def _replay_info(path: ReplayPath, outcome: ReplayOutcome, *, is_eager: bool, is_fault: bool) -> ReplayInfo:
    note = None if outcome.error is None else f"the replay raised {type(outcome.error).__name__}: {outcome.error}"
    if not is_fault:
        note = f"a replay {_describe_difference(outcome, path[1][-1])}"
    is_checked = outcome.error is None and is_fault
    return ReplayInfo(
        step=outcome.step,
        snapshot_step=path[0].step,
        is_identical=outcome.first_difference is None if is_checked else None,
        first_difference=outcome.first_difference,
        is_eager=is_eager,
        note=note,
    )
