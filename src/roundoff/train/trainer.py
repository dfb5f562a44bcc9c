"""The reference trainer, to be read from top to bottom; `Trainer._train_step` is one training step."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from roundoff.errors import TrainError, first_line
from roundoff.precision import RecipeOptimizer, apply_recipe
from roundoff.precision.activations import CompressedActivations
from roundoff.runs import Metrics
from roundoff.train.config import TrainConfig
from roundoff.train.data import Batch, EvalSampler, TrainSampler, load_data, loader_of
from roundoff.train.data.batch_loading import seed_from
from roundoff.train.launch import launch_ranks
from roundoff.train.models import build_model
from roundoff.train.optimization import (
    Score,
    WeightAverage,
    build_optimizer,
    loss_of,
    lr_at,
    num_targets,
    score_from,
    tally,
)
from roundoff.train.ranks import (
    RankPlace,
    Ranks,
    gather_shards,
    joined_ranks,
    place_here,
    shard,
    sharded_for,
    sharded_like,
    with_synced_batch_norm,
)
from roundoff.train.run_log import EpochLines, RunLog, TrainResult
from roundoff.train.trainer_state import NAME, TrainerState, random_state, restore_random_state, seed_everything

OnStep = Callable[[Metrics], None]


def train(config: TrainConfig, *, on_step: OnStep | None = None, progress: bool = False) -> TrainResult:
    """Train a model according to `config`, and return the result.

    Seeds the global random generators. `on_step` receives the metrics of every step of the first rank; with `procs`
    above 1 it runs in another process, so it must be a function at the top level of a module. `progress` shows a
    progress bar and one line per epoch on standard error.

    Training continues after a NaN or infinite loss; the result reports how many there were.
    """
    train_here = partial(train_rank, on_step=on_step, progress=progress)
    place = place_here(config)
    if config.procs > 1:
        result = launch_ranks(config, train_here)
        assert isinstance(result, TrainResult)
        return result
    return train_here(config, place)


def train_rank(config: TrainConfig, place: RankPlace, *, on_step: OnStep | None, progress: bool) -> TrainResult:
    """Run one rank of a training, from joining the others to the result."""
    with joined_ranks(config, place) as ranks:
        training = Trainer(config, ranks)
        shown = EpochLines(
            shown=progress and ranks.is_first,
            num_epochs=config.epochs,
            total_steps=training.last_step,
            is_text=config.is_text,
        )
        with RunLog(config, ranks) as run_log, shown:
            return training.run(run_log, shown, on_step if ranks.is_first else None)


@dataclass(slots=True)
class History:
    """What has happened so far on this rank."""

    losses: list[float] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    seconds: float = 0.0
    num_skipped: int = 0
    num_unreadable: int = 0
    unreadable: str = ""
    notes: list[str] = field(default_factory=list)

    def note_unreadable(self, batch: Batch) -> None:
        """Count the images of a batch that could not be read, and remember the first."""
        self.num_unreadable += batch.num_unreadable
        self.unreadable = self.unreadable or batch.unreadable


class Trainer:
    """All parts of a training on one rank, created in the order in which they depend on each other."""

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        self.config, self.ranks, self.device = config, ranks, ranks.device
        self.history = History()

        # The data. The samples of a step depend only on seed, epoch and step: see data/loader.py.
        self.data = load_data(config)
        rank, num_ranks = ranks.rank, ranks.num_ranks
        self.sampler = TrainSampler(
            len(self.data.train),
            batch_size=config.batch_size,
            accumulate=config.accumulate,
            seed=config.seed,
            rank=rank,
            num_ranks=num_ranks,
        )
        eval_sampler = EvalSampler(
            len(self.data.test), batch_size=2 * config.batch_size // num_ranks, rank=rank, num_ranks=num_ranks
        )
        loader = partial(loader_of, workers=config.workers, seed=config.seed, pin_memory=self.device.type != "cpu")
        self.batches = loader(self.data.train, self.sampler)
        self.test_batches = loader(self.data.test, eval_sampler)

        # The length. `steps` stops early and does not change the schedule.
        self.steps_per_epoch = self.sampler.steps_per_epoch
        self.total_steps = config.epochs * self.steps_per_epoch
        self.last_step = min(self.total_steps, config.steps or self.total_steps)
        self.step = 0

        # The model. The same seed gives the same weights on every rank.
        seed_everything(config.seed)
        model = build_model(config, self.data).to(self.device)
        if config.sync_bn:
            model = with_synced_batch_norm(model, ranks)
        if config.fsdp:
            shard(model, ranks)

        # The optimizer, the recipe for both, and the exchange of gradients between ranks.
        optimizer = build_optimizer(config, model)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            self.model, self.optimizer = apply_recipe(
                model, optimizer, config.recipe, loss_scale=_loss_scale(config), wide=config.wide
            )
        self.history.notes += [str(warning.message) for warning in warned]
        self.forward = (
            self.model if config.fsdp else ranks.wrap(self.model, find_unused_parameters=config.find_unused_parameters)
        )
        self.average = self._new_average()

        # From here on every rank draws its own random numbers (dropout, stochastic rounding).
        seed_everything(seed_from(config.seed, rank))
        if config.resume is not None:
            self._resume(TrainerState.load(config.resume))
        self.first_step = self.step

    def run(self, run_log: RunLog, shown: EpochLines, on_step: OnStep | None) -> TrainResult:
        """Train all epochs, evaluate and save after each, and return the result."""
        for note in self.history.notes:
            shown.line(note)
        if self.config.eval_only or self.step >= self.last_step:
            self.history.scores.append(self._evaluate())
        while self.step < self.last_step and not self.config.eval_only:
            epoch = self.step // self.steps_per_epoch
            try:
                losses = self._train_epoch(epoch, run_log, shown, on_step)
            except KeyboardInterrupt:
                if run_log.folder is not None and (run_log.folder / NAME).exists():
                    shown.line(f"interrupted in step {self.step}; continue with --resume {run_log.folder}")
                raise
            score = self._evaluate()
            self.history.losses += losses
            self.history.scores.append(score)
            run_log.log_evaluation(self.step - 1, epoch, score)
            shown.epoch(epoch, loss=sum(losses) / len(losses), score=score, lr=self._lr(self.step - 1))
            self._save(run_log)
        result = self._result(run_log)
        run_log.finish([*result.notes, self.optimizer.report()])
        return result

    def _train_epoch(self, epoch: int, run_log: RunLog, shown: EpochLines, on_step: OnStep | None) -> list[float]:
        """Train from the current step to the end of the epoch; return the losses, averaged over the ranks."""
        first_step = self.step
        self.sampler.begin(epoch=epoch, first_step=first_step % self.steps_per_epoch)
        microbatches = iter(self.batches)
        sums: list[tuple[float, float]] = []
        self.forward.train()
        while self.step < min((epoch + 1) * self.steps_per_epoch, self.last_step):
            began = time.perf_counter()
            loss, num_places, metrics = self._train_step(
                itertools.islice(microbatches, self.config.accumulate), run_log
            )
            metrics = replace(metrics, seconds=time.perf_counter() - began)
            self.history.seconds += time.perf_counter() - began
            sums.append((loss * num_places, num_places))
            self.step += 1
            run_log.step(metrics)
            shown.step(metrics.step, loss)
            if on_step is not None:
                on_step(metrics)
            if self.config.save_every and self.step % self.config.save_every == 0:
                self._save(run_log)
        totals = self.ranks.sum(torch.tensor(sums, dtype=torch.float64))
        return (totals[:, 0] / totals[:, 1].clamp(min=1)).tolist()

    def _train_step(self, microbatches: Iterable[Batch], run_log: RunLog) -> tuple[float, int, Metrics]:
        """Train one step; return its loss, the number of targets it is the mean of, and its metrics."""
        lr = self._lr(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr

        losses, places, factor = [], [], self.config.loss_factor
        for nth, microbatch in enumerate(microbatches, start=1):
            batch = microbatch.to(self.device)
            self.history.note_unreadable(batch)
            with self._exchange(is_last=nth == self.config.accumulate):
                loss = self._loss(self.forward(batch.inputs), batch)
                self.optimizer.backward(loss * factor if factor != 1.0 else loss)
            losses.append(loss.detach())
            places.append(num_targets(batch))

        scale = self.optimizer.scale
        self.optimizer.unscale_()
        grad_norm = self._clip()
        if self.step % self.steps_per_epoch == 0:
            run_log.draw(self.step, self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()
        skipped = self.optimizer.last_overflow is not None
        self.history.num_skipped += skipped
        if self.average is not None and not skipped:
            self.average.update(self.model)

        values = torch.stack([torch.stack(losses).sum().double(), torch.stack(places).sum().double(), grad_norm])
        total, num_places, norm = values.tolist()  # the only line of a step that waits for the device
        metrics = Metrics(step=self.step, loss=total, lr=lr, loss_scale=scale, skipped=skipped, grad_norm=norm)
        return total, int(num_places), metrics

    def _new_average(self) -> WeightAverage | None:
        return None if self.config.ema is None else WeightAverage(self.model, decay=self.config.ema)

    def _lr(self, step: int) -> float:
        config = self.config
        return lr_at(
            step,
            peak=config.peak_lr,
            schedule=config.schedule,
            total_steps=self.total_steps,
            warmup_steps=round(config.warmup * self.steps_per_epoch),
        )

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the contribution of this microbatch to the loss of the step."""
        config = self.config
        loss = loss_of(logits, batch, label_smoothing=config.label_smoothing, reduction=config.loss_reduction)
        # Gradients are summed over microbatches but averaged over ranks; a sum must stay a sum.
        return loss * self.ranks.num_ranks if config.loss_reduction == "sum" else loss / config.accumulate

    def _exchange(self, *, is_last: bool) -> contextlib.AbstractContextManager[object]:
        """Make the ranks exchange gradients only in the last microbatch of a step."""
        if isinstance(self.forward, FSDPModule):
            self.forward.set_requires_gradient_sync(is_last)
        elif isinstance(self.forward, DistributedDataParallel) and not is_last:
            return self.forward.no_sync()
        return contextlib.nullcontext()

    def _clip(self) -> Tensor:
        """Clip the gradients if `clip` is set; return their norm before."""
        if self.config.clip is not None:
            return _plain(self.optimizer.clip_grad_norm_(self.config.clip))
        groups = self.optimizer.param_groups
        grads = [parameter.grad for group in groups for parameter in group["params"] if parameter.grad is not None]
        return _plain(nn.utils.get_total_norm(grads))

    @torch.no_grad()
    def _evaluate(self) -> Score:
        """Evaluate every sample of the test data once; all ranks return the same score."""
        self.ranks.share_buffers(self.model)
        self.model.eval()
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        averaged = self.average.in_place_of_weights(self.model) if self.average else contextlib.nullcontext()
        with averaged:
            for microbatch in self.test_batches:
                batch = microbatch.to(self.device)
                self.history.note_unreadable(batch)
                sums += tally(self.model(batch.inputs), batch)
        return score_from(self.ranks.sum(sums))

    def _save(self, run_log: RunLog) -> None:
        """Save everything that is needed to continue bit for bit from here."""
        if run_log.folder is None:
            return
        checkpoint = TrainerState(
            config=self.config.to_object(),
            num_ranks=self.ranks.num_ranks,
            step=self.step,
            model=gather_shards(self.model.state_dict()),
            optimizer=gather_shards(self.optimizer.state_dict()),
            average=gather_shards(self.average.state_dict()) if self.average else None,
            random=self.ranks.from_all(random_state(self.device)),
        )
        if self.ranks.is_first:
            checkpoint.save(run_log.folder / NAME)
        run_log.log_checkpoint(self.step - 1, run_log.folder / NAME)
        run_log.flush()

    def _resume(self, checkpoint: TrainerState) -> None:
        """Continue from a checkpoint, and note what makes the rest differ from an uninterrupted training."""
        changes = self.config.changes_since(checkpoint.config)
        if checkpoint.num_ranks != self.ranks.num_ranks:
            changes.append(f"ranks {self.ranks.num_ranks}, was {checkpoint.num_ranks}")
        try:
            if checkpoint.config["optimizer"] != self.config.optimizer:
                raise ValueError("another optimizer has another state")
            self.model.load_state_dict(sharded_like(self.model.state_dict(), checkpoint.model))
            self.optimizer.load_state_dict(sharded_for(self.optimizer, checkpoint.optimizer))
            self.average = self._new_average()
            if self.average is not None and checkpoint.average is not None:
                self.average.load_state_dict(sharded_like(self.average.state_dict(), checkpoint.average))
        except (RuntimeError, ValueError, KeyError) as error:
            raise TrainError.explain(
                f"The checkpoint '{self.config.resume}' does not fit this training.",
                why=_reason(changes, error),
                fix="resume with the same model, data and optimizer.",
            ) from error
        if self.ranks.rank < len(checkpoint.random):
            restore_random_state(checkpoint.random[self.ranks.rank], self.device)
        self.step = checkpoint.step
        self.history.notes.append(f"resumed from {self.config.resume} at step {checkpoint.step}")
        if self.step >= self.last_step and not self.config.eval_only:
            self.history.notes.append(f"nothing left to train: {self.last_step} steps were requested")
        if changes:
            self.history.notes.append(f"not bit-identical to an uninterrupted training: {'; '.join(changes)}")

    def _result(self, run_log: RunLog) -> TrainResult:
        history = self.history
        counts = torch.tensor([history.num_unreadable], dtype=torch.float64)
        (num_unreadable,) = self.ranks.sum(counts).tolist()
        nonfinite = [step for step, loss in enumerate(history.losses, self.first_step) if not math.isfinite(loss)]
        score = history.scores[-1]
        notes = list(history.notes)
        if nonfinite:
            notes.append(f"the loss was not finite in {len(nonfinite)} steps, first in step {nonfinite[0]}")
        if num_unreadable:
            example = next(path for path in self.ranks.from_all(history.unreadable) if path)
            notes.append(f"skipped unreadable images {num_unreadable:.0f} times, for example {example}")
        return TrainResult(
            top1=score.top1,
            top5=score.top5,
            eval_loss=score.loss,
            perplexity=score.perplexity if self.config.is_text else None,
            losses=tuple(history.losses),
            scores=tuple(history.scores),
            first_step=self.first_step,
            first_nonfinite_step=nonfinite[0] if nonfinite else None,
            num_nonfinite=len(nonfinite),
            num_skipped=history.num_skipped,
            num_unreadable=int(num_unreadable),
            seconds=history.seconds,
            samples_per_second=len(history.losses) * self.config.batch_size / max(history.seconds, 1e-9),
            saved_activation_bytes=_saved_activation_bytes(self.optimizer),
            folder=run_log.folder,
            notes=tuple(notes),
        )


def _loss_scale(config: TrainConfig) -> str | float | None:
    """Return the loss scale for `apply_recipe`, where None means that of the recipe."""
    if config.loss_scale is None:
        return "none"
    return None if config.loss_scale == "recipe" else config.loss_scale


def _plain(norm: Tensor) -> Tensor:
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).detach().double()


def _reason(changes: list[str], error: Exception) -> str:
    return f"{'; '.join(changes)}." if changes else first_line(error)


def _saved_activation_bytes(optimizer: RecipeOptimizer) -> int | None:
    """Return the bytes that the latest training forward saved; None if the recipe does not compress activations."""
    for extra in optimizer.extras:
        if isinstance(extra, CompressedActivations):
            return extra.report().bytes_after
    return None
