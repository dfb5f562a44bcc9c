"""Runs a saved step again in this process, op by op, from its files and a newly built model."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.diagnose.nonfinite.origin import OriginPlace, find_origin
from roundoff.errors import ReplayError, first_line
from roundoff.precision import apply_recipe
from roundoff.precision.optimizer import RecipeOptimizer
from roundoff.progress import counting
from roundoff.record.event_selection import RecordingSettings
from roundoff.record.loop.sites import Sites
from roundoff.record.session import Recording
from roundoff.replay.arguments import ExternalTensor
from roundoff.replay.player import ReplayOutcome, replay_sources, replay_steps
from roundoff.replay.saved.builder import Built
from roundoff.replay.saved.saved_step import StateNames, load_state, models_of, read_saved_tape
from roundoff.replay.saved.tape_json import SavedCall, SavedTape
from roundoff.replay.saved.tape_reader import Devices, TapeReader, read_external_tensors
from roundoff.replay.snapshots import ReplayPath, Snapshot
from roundoff.replay.state import Training, TrainingState
from roundoff.replay.step_tape import LoopEntry, StepEntry, StepTape
from roundoff.replay.what_if import UNCHANGED, Change, play_changed
from roundoff.runs import Event, EventKey, JsonValue, Run, RunWriter
from roundoff.torch_private import hidden_from_modes

_MAX_SKIPS = 12
"""How often a recipe may skip the step and try a smaller loss scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """The result of running a saved step again."""

    step: int
    recipe: str | None
    losses: tuple[float, ...]
    """The losses that backward started from, unscaled."""
    saved_losses: tuple[float, ...]
    place: OriginPlace | None
    """Where the bad value came from this time; None if everything that matters is finite."""
    is_same_place: bool
    was_bad: bool
    """Whether something was not finite when the step was saved; it may also have been saved for a jump of the loss."""
    num_same: int
    """How many tensors are bit for bit as they were saved."""
    num_compared: int
    first_difference: Event | None
    """The first tensor that is not."""
    has_optimizer: bool
    """Whether the optimizer stepped."""
    loss_scale: float | None
    """That of the recipe, if it scales the loss."""
    has_own_recipe: bool
    """Whether the builder applies a recipe itself, so that no other can be requested."""

    @property
    def is_bad(self) -> bool:
        """Whether something that matters is not finite."""
        return self.place is not None or not all(map(math.isfinite, self.losses))

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        bad = None if self.place is None else self.place.bad
        return {
            "step": self.step, "recipe": self.recipe, "is_bad": self.is_bad, "is_same_place": self.is_same_place,
            "was_bad": self.was_bad,
            "origin": None if bad is None else {
                "phase": bad.phase, "site": bad.site, "op": bad.op_name, "microbatch": bad.microbatch,
                "source": bad.source,
            },
            "losses": list(self.losses), "saved_losses": list(self.saved_losses), "num_same": self.num_same,
            "num_compared": self.num_compared, "has_optimizer": self.has_optimizer, "loss_scale": self.loss_scale,
        }  # fmt: skip


def rerun_step(
    replayed: Run, *, build: Callable[[], Built], recipe: str | None = None, to: Path | None = None, rank: int = 0
) -> Rerun:
    """Run the step again and record it; compare the results with what was saved.

    Args:
        replayed: the folder of the replayed step.
        build: builds the models; called once for each attempt.
        recipe: computes the step instead of what the training used; the step then starts from fp32.
        to: the run folder to write the recording to; without it nothing is kept.
        rank: whose files to read.
    """
    if to is not None and to.exists():
        raise ReplayError.explain(f"'{to}' already exists.", fix="choose another folder, or remove this one.")
    tape = read_saved_tape(replayed, rank=rank)
    with tempfile.TemporaryDirectory(prefix="roundoff-replay-") as scratch:
        scale: float | None = None
        for number in range(_MAX_SKIPS):
            attempt = _Attempt(replayed, tape, build(), recipe=recipe, loss_scale=scale, rank=rank)
            outcome = attempt.run(Path(scratch) / str(number))
            if outcome.error is not None:
                raise _failed_error(outcome.error)
            if not attempt.was_skipped:
                break
            scale = attempt.scale / 4
        return attempt.compare_with_saved(keep_in=to)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedChange:
    """The result of playing a saved step several times with something changed."""

    text: str
    """What was changed: `a tenth of the learning rate`."""
    is_good: bool
    """Whether losses and weights stayed finite."""
    losses: tuple[float, ...]
    """Those of each time, up to the first that is bad."""


def play_with_changes(
    replayed: Run,
    *,
    build: Callable[[], Built],
    changes: Sequence[Callable[[Training, Sites], Change]],
    repeat: int,
    rank: int = 0,
) -> list[PlayedChange]:
    """Play a saved step several times, its weights going on from one time to the next: as it was, and with each change.

    Args:
        replayed: the folder of the replayed step.
        build: builds the models; called once for each change.
        changes: make a change for a newly built training.
        repeat: how many times in a row.
        rank: whose files to read.
    """
    tape = read_saved_tape(replayed, rank=rank)
    played: list[PlayedChange] = []
    for make in counting((lambda *_: UNCHANGED, *changes), "attempt"):
        attempt = _Attempt(replayed, tape, build(), recipe=None, loss_scale=None, rank=rank)
        training, sites, path = attempt.start(times=repeat)
        change = make(training, sites)
        if change.name in ("rate", "clip") and not any(isinstance(each, StepEntry) for each in path[1][0].entries):
            raise ReplayError.explain(
                f"The step cannot be played with {change.text}.",
                why="no optimizer of the builder steps in it by itself: through a scaler, or with the builder's loss.",
                fix="if the builder returns no optimizer, let it return (model, optimizer).",
            )
        try:
            is_good, losses = play_changed(training, path, change)
        except Exception as error:
            raise _failed_error(error) from error
        played.append(PlayedChange(text=change.text, is_good=is_good, losses=tuple(losses)))
    return played


class _Attempt:
    """One attempt at the step, with a newly built model."""

    def __init__(
        self, replayed: Run, tape: SavedTape, built: Built, *, recipe: str | None, loss_scale: float | None,
        rank: int,
    ) -> None:  # fmt: skip
        self.losses: list[Tensor] = []
        self.was_skipped = False
        """Whether the recipe found gradients that are not finite; a smaller loss scale may help."""
        self._replayed = replayed
        self._tape = tape
        self._built = built
        self._recipe = recipe
        self._rank = rank
        self._folder = Path()
        state, batch = replayed.replay_state(rank=rank), replayed.replay_batch(rank=rank)
        self._names = StateNames(models_of(built, tape, state), built.optimizers)
        load_state(self._names, tape, state)
        # It never steps. With an optimizer, a recording treats several backwards as one step.
        self._idle = None if built.optimizers else torch.optim.SGD(_parameters(self._names.models), lr=0.0)
        self._recipes = self._with_recipe(loss_scale)
        devices = Devices(self._names.models)
        external = read_external_tensors(tape["outside"], batch, is_wide=recipe is not None, devices=devices)
        if built.loss is None:
            if tape["untold"] is not None:
                raise _loss_needed_error(tape["untold"])
            reader = TapeReader(self._names, external, batch, on_loss=self._keep_loss, recipes=self._recipes)
            self._step = reader.read(tape)
            scale = tape["scalers"][0]["scale"] if tape["scalers"] else 1.0
            self.saved_losses = tuple(loss / scale for loss in _losses_in(tape["calls"]))
        else:
            in_batch = [x for x, facts in zip(external, tape["outside"], strict=True) if facts["in_batch"]]
            call = LoopEntry(lambda: self._step_with_loss(in_batch), (), {}, None)
            self._step = StepTape(tape["step"], [call], external)
            self.saved_losses = ()

    @property
    def scale(self) -> float:
        """The recipe's loss scale."""
        return self._recipes[0].scale if self._recipes else 1.0

    def start(self, *, times: int = 1) -> tuple[Training, Sites, ReplayPath]:
        """Return the training, the names of its modules, and what to play from its state, several times in a row."""
        training, sites, state = Training(), Sites(), TrainingState()
        for model in self._names.models:
            training.add_model(model)
            sites.add_model(model)
        for optimizer in self._recipes or self._names.optimizers:
            training.add_optimizer(optimizer)
        state.take(training)
        state.take_gradients()
        return training, sites, (Snapshot(self._step.step, state), [self._step] * times)

    def run(self, folder: Path) -> ReplayOutcome:
        """Run the step and record it into the folder."""
        self._folder = folder
        training, sites, path = self.start()
        writer = RunWriter.create(folder, self._replayed.info)
        sources = replay_sources()
        session = Recording(
            writer, RecordingSettings(inputs=True), sites=sites, sources=sources, first_step=self._step.step
        )

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            with session.running():
                yield
            self.was_skipped = self.scale > 1 and any(optimizer.num_skips for optimizer in self._recipes)

        return replay_steps(training, *path, around_last=around, sources=sources)

    def compare_with_saved(self, *, keep_in: Path | None) -> Rerun:
        """Compare the recording with what was saved; keep it in a folder if one is given."""
        if keep_in is not None:
            shutil.copytree(self._folder, keep_in)
        run, step = Run.open(self._folder), self._step.step
        place = find_origin(run, step=step)
        saved_place = find_origin(self._replayed, step=step, rank=self._rank)
        saved = {_key(event): event for event in self._replayed.iter_events(step=step, rank=self._rank)}
        pairs = [(saved[_key(event)], event) for event in run.iter_events(step=step) if _key(event) in saved]
        pairs = [
            (before, now) for before, now in pairs if now.output.startswith("output")
        ]  # inputs are outputs of other ops
        differing = [now for before, now in pairs if not _is_same(before, now)]
        return Rerun(
            step=step,
            recipe=self._recipe,
            losses=tuple(float(loss) for loss in self.losses),
            saved_losses=self.saved_losses,
            place=place,
            is_same_place=place is not None
            and saved_place is not None
            and place.bad.key[3:] == saved_place.bad.key[3:],
            was_bad=saved_place is not None or not all(map(math.isfinite, self.saved_losses)),
            num_same=len(pairs) - len(differing),
            num_compared=len(pairs),
            first_difference=min(differing, key=lambda event: event.order, default=None),
            has_optimizer=bool(self._built.optimizers),
            loss_scale=self._recipes[0].scale if self._recipes and self._recipes[0].scale != 1 else None,
            has_own_recipe=any(isinstance(optimizer, RecipeOptimizer) for optimizer in self._built.optimizers),
        )

    def _with_recipe(self, loss_scale: float | None) -> list[RecipeOptimizer]:
        if self._recipe is None:
            return []
        trained = [model for model in self._names.models if next(model.parameters(), None) is not None]
        if len(trained) != 1:
            raise ReplayError.explain(
                "A recipe can only be tried on a step with one model.", why=f"this step has {len(trained)}."
            )
        model = trained[0].float()
        optimizers: list[Optimizer] = [self._idle] if self._idle is not None else self._names.optimizers
        _, applied = apply_recipe(model, optimizers, self._recipe, loss_scale=loss_scale)
        return list(applied)

    def _step_with_loss(self, batch: Sequence[ExternalTensor]) -> None:
        """Run the step with the loss that the builder returned."""
        assert self._built.loss is not None
        with hidden_from_modes():  # the copies are not ops of the step
            tensors = [x.new_copy() for x in batch]
        loss = self._built.loss(self._names.models[0], *tensors)
        self._keep_loss(loss)
        scaling = [o for o in (*self._recipes, *self._names.optimizers) if isinstance(o, RecipeOptimizer)]
        if scaling:
            scaling[0].backward(loss)
        else:
            loss.backward()
        if self._built.optimizers:
            for optimizer in self._recipes or self._names.optimizers:
                optimizer.step()

    def _keep_loss(self, loss: Tensor) -> None:
        self.losses.append(loss.detach())


def _parameters(models: Sequence[nn.Module]) -> list[nn.Parameter]:
    return [parameter for model in models for parameter in model.parameters()]


def _key(event: Event) -> EventKey:
    """Return the key of a tensor without its rank."""
    return event.key._replace(rank=0)


def _is_same(before: Event, now: Event) -> bool:
    """Return whether two tensors are bit for bit the same; the bits of a NaN mean nothing."""
    if before.hash == now.hash and before.shape == now.shape and before.dtype == now.dtype:
        return True
    numbers = [(x.num_nan, x.num_posinf, x.num_neginf, x.min, x.max, x.l2) for x in (before, now)]
    return before.num_nan > 0 and numbers[0] == numbers[1]


def _losses_in(calls: Sequence[SavedCall]) -> Iterator[float]:
    for call in calls:
        if call["call"] == "backward" and call["loss"] is not None:
            yield call["loss"][1]
        if call["call"] == "step":
            for closure in call["closures"]:
                yield from _losses_in(closure)


def _loss_needed_error(reason: str) -> ReplayError:
    return ReplayError.explain(
        "The calls of the loop in this step could not be saved.",
        why=f"{reason}.",
        fix="let the builder return (model, optimizer, loss), where loss(model, *batch) computes the loss.",
    )


def _failed_error(error: Exception) -> ReplayError:
    return ReplayError.explain(
        f"The step raised {type(error).__name__} when it was run again.",
        why=f"{first_line(error)}.",
        fix="if the training did not raise it, check the model of the builder, and that its loss fits the batch.",
    )
