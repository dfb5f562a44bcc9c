"""Training data: images or text, as batches that depend only on their draw."""

from roundoff.train.data.batch_loading import (
    IGNORED,
    PADDING,
    Batch,
    Draw,
    EvalSampler,
    Samples,
    TrainSampler,
    loader_of,
)
from roundoff.train.data.sources import Data, load_data

__all__ = [
    "IGNORED",
    "PADDING",
    "Batch",
    "Data",
    "Draw",
    "EvalSampler",
    "Samples",
    "TrainSampler",
    "load_data",
    "loader_of",
]
