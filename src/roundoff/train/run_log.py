"""What a training writes while it runs: the run folder, and TensorBoard if requested."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import nn

from roundoff.record.process_info import describe_process
from roundoff.report.tensorboard import TensorBoard, weights_and_gradients
from roundoff.runs import Call, CallDetail, CallKind, Metrics, ModeDetail, RunWriter, SaveDetail, next_free_name
from roundoff.train.config import TrainConfig
from roundoff.train.objective import Score
from roundoff.train.ranks import Ranks

_FLUSH_SECONDS = 5.0


class RunLog:
    """Writes the metrics of one rank; those of the last step are held back because an evaluation may follow."""

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        self.folder = _folder(config, ranks)
        self._writer = _writer(self.folder, config, ranks) if self.folder is not None else None
        self._board = TensorBoard(config.tensorboard) if config.tensorboard and ranks.is_first else None
        self._last: Metrics | None = None
        self._began = self._flushed = time.monotonic()

    def step(self, metrics: Metrics) -> None:
        """Log the metrics of a step."""
        self._write_last()
        self._last = metrics
        if self._board is not None:
            self._board.metrics(metrics)
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def draw(self, step: int, model: nn.Module) -> None:
        """Log histograms of the present weights and gradients."""
        if self._board is not None:
            self._board.histograms(step, weights_and_gradients(model.named_parameters()))

    def evaluated(self, step: int, epoch: int, score: Score) -> None:
        """Log the evaluation after the last step."""
        if self._last is not None:
            self._last = replace(self._last, eval_loss=score.loss)
        self._call(step, "eval", ModeDetail(epoch=epoch, loss=score.loss, top1=score.top1, top5=score.top5))
        if self._board is not None:
            self._board.scalars(step, {"eval_loss": score.loss, "top1": score.top1, "top5": score.top5})

    def saved(self, step: int, path: Path) -> None:
        """Log a checkpoint."""
        self._call(step, "save", SaveDetail(path=path.name))

    def flush(self) -> None:
        """Write everything but the last step to disk."""
        if self._writer is not None:
            self._writer.flush()
        self._flushed = time.monotonic()

    def finish(self, notes: Sequence[str]) -> None:
        """Write the last step and the notes."""
        self._write_last()
        if self._writer is not None:
            for note in notes:
                self._writer.note(note)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write_last()
        if self._writer is not None:
            self._writer.close(status="finished" if kind is None else "failed")
        if self._board is not None:
            self._board.close()

    def _write_last(self) -> None:
        if self._writer is not None and self._last is not None:
            self._writer.write(self._last)
        self._last = None

    def _call(self, step: int, call: CallKind, detail: CallDetail) -> None:
        if self._writer is not None:
            now = time.monotonic() - self._began
            self._writer.write(Call(step=step, call=call, seconds=now, detail=detail))


def _folder(config: TrainConfig, ranks: Ranks) -> Path | None:
    """Return the run folder, the same on all ranks."""
    if config.runs is None:
        return None
    if config.name is not None:
        return config.runs / config.name
    folder = ranks.from_first(str(next_free_name(config.runs, "train")) if ranks.is_first else None)
    return Path(folder)


def _writer(folder: Path, config: TrainConfig, ranks: Ranks) -> RunWriter:
    info = describe_process(seed=config.seed, settings=config.to_object(), command=None)
    return RunWriter.create(folder, replace(info, recipe=config.recipe, ranks=ranks.num_ranks), rank=ranks.rank)
