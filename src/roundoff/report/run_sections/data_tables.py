"""What is known about the data in numbers: tensors, channels, epochs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roundoff.diagnose.data_order import EpochSeen, epochs_seen
from roundoff.diagnose.kept_samples import ChannelRange
from roundoff.report.markup import Html, joined, tag
from roundoff.report.shares import percent
from roundoff.runs import BatchFacts, Run, TensorFacts

MOST_TENSORS = 20


def inputs_table(batch: BatchFacts) -> Html:
    """Return what came in from outside in one step, a line for each tensor, what the loss was given last."""
    given = [tensor for tensor in batch.tensors if not tensor.is_target]
    targets = list(batch.targets) or [tensor for tensor in batch.tensors if tensor.is_target]
    rows = [*(_tensor(tensor, tensor.place) for tensor in given), *(_tensor(tensor, "target") for tensor in targets)]
    heads = ("tensor", "shape", "dtype", "min", "mean", "max", "std", "not finite")
    return _plain_table(heads, rows[:MOST_TENSORS], name="what came in", num_texts=3)


def channels_table(ranges: Sequence[ChannelRange]) -> Html:
    """Return the range of each channel."""
    rows = [
        [str(number), *map(_number, (each.min, each.mean, each.max, each.std)), str(each.num_nonfinite or "")]
        for number, each in enumerate(ranges)
    ]
    return _plain_table(("channel", "min", "mean", "max", "std", "not finite"), rows, name="channels", num_texts=1)


def epochs_table(run: Run) -> list[Html]:
    """Return order and repetitions of samples, a line for each epoch of each rank; nothing if none was hashed."""
    found = epochs_seen(run)
    if not found:
        return []
    several = len({each.rank for each in found}) > 1
    heads = ["epoch", "steps", "sampler", "order", "samples looked at", "again in the epoch"]
    rows = [_epoch(each) for each in found]
    if several:
        heads = ["rank", *heads, "also on another rank"]
        rows = [[str(each.rank), *row, _share(each.num_elsewhere, each)] for each, row in zip(found, rows, strict=True)]
    num_texts = 5 if several else 4
    table = _plain_table(heads, rows, name="epochs", num_texts=num_texts)
    return [tag("h3", "Order and repetitions"), table]


def _tensor(tensor: TensorFacts, name: str) -> list[str]:
    numbers = (tensor.min, tensor.mean, tensor.max, tensor.std)
    shape = " x ".join(map(str, tensor.shape)) or "scalar"
    return [name, shape, tensor.dtype, *map(_number, numbers), str(tensor.num_nonfinite or "")]


def _epoch(each: EpochSeen) -> list[str]:
    order = {None: "", True: "as in the first epoch", False: "another than in the first epoch"}[each.is_same_order]
    steps = f"{each.first_step} to {each.last_step}"
    return [str(each.epoch), steps, each.sampler, order, str(each.num_samples), _share(each.num_again, each)]


def _share(num: int, each: EpochSeen) -> str:
    return f"{num} ({percent(num / each.num_samples)})" if num else "0"


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4g}"


def _plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, name: str, num_texts: int) -> Html:
    """Return a table that is too short to be filtered; the columns from the nth on are numbers."""
    kinds = [None if place < num_texts else "number" for place in range(len(heads))]
    head = tag("tr", *(tag("th", text, scope="col", class_=kind) for text, kind in zip(heads, kinds, strict=True)))
    body = [tag("tr", *(tag("td", text, class_=kind) for text, kind in zip(row, kinds, strict=True))) for row in rows]
    table = tag("table", tag("thead", head), tag("tbody", joined(*body)), class_="plain")
    return tag("div", table, class_="scrolling", tabindex=0, role="region", aria_label=name)
