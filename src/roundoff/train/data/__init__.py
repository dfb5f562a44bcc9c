"""Training data: images or text, as batches that depend only on their draw."""

from roundoff.train.data.batch import IGNORED, PADDING, Batch, Draw, Samples
from roundoff.train.data.loader import EvalSampler, TrainSampler, loader_of
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
