"""How many bytes a training keeps between forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from roundoff.precision.activations import UNCOMPRESSED, ActivationSettings, compress_activations
from roundoff.train.config import TrainConfig
from roundoff.train.data import Batch
from roundoff.train.ranks import joined_ranks, place_here
from roundoff.train.trainer import Training


def saved_bytes(config: TrainConfig) -> int | None:
    """Return what one forward of a first batch saves for its backward, parameters and buffers left out.

    Runs that forward, at the price of one step, in this process; None for several ranks.
    """
    if config.num_ranks > 1:
        return None
    alone = replace(config, runs=None, resume=None, workers=0)
    with joined_ranks(alone, place_here(alone)) as ranks:
        training = Training(alone, ranks)
        training.sampler.begin(epoch=0, first_step=0)
        batches: Iterator[Batch] = iter(training.batches)
        batch = next(batches).to(ranks.device)
        training.model.train()
        with compress_activations(training.model, ActivationSettings(bits=UNCOMPRESSED)) as seen:
            training.model(batch.inputs)
            report = seen.report()
    return report.bytes_before
