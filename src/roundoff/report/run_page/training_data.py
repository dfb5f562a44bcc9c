"""The data of the training: first samples as pictures or text, with labels, ranges, label counts and order."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roundoff.diagnose.data.samples import (
    COLOURS,
    MAX_EPOCHS,
    ChannelRange,
    EpochSeen,
    LabelCounts,
    SavedBatch,
    SavedInput,
    channel_axis,
    channel_ranges,
    epochs_seen,
    label_counts,
    saved_batches,
)
from roundoff.diagnose.diagnosis import RunView
from roundoff.diagnose.loop_facts import model_inputs
from roundoff.diagnose.wording import format_short
from roundoff.report.charts import Curve, chart, figure, line
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.parts import percent
from roundoff.report.run_page.section import Section
from roundoff.runs import BatchFacts, JsonValue, Run, TensorFacts
from roundoff.words import plural

_GREY, _RGB = 0, 2
"""Color types of PNG: one number for each pixel, or three."""


MAX_BARS = 200
"""If there are more labels, those that are seen most often are drawn."""


def data_section(view: RunView) -> Section | None:
    """Show what the training was given; None if nothing was recorded about it."""
    run = view.run
    rank = min(run.ranks, default=0)
    facts = run.inputs(rank=rank)
    if not facts:
        return None
    labels, ranges = label_counts(run), _range_chart(run, rank)
    batches = saved_batches(run, rank)
    return Section(
        key="data",
        title="Data",
        body=join_html(
            *_samples(batches),
            tag("h3", "First inputs"),
            inputs_table(facts[0]),
            *_channels(batches),
            _charts(labels, has_ranges=ranges is not None),
            *epochs_table(run),
        ),
        data={
            **({} if labels is None else {"labels": _bars(labels)}),
            **({} if ranges is None else {"ranges": ranges}),
        },
        thinned=_omissions(run, rank, labels),
    )


def _samples(batches: Sequence[SavedBatch]) -> list[Html]:
    if not any(batch.inputs for batch in batches):
        words = "No samples were saved. roundoff run saves some of the first two batches, unless --kept-batches is 0."
        return [tag("p", words, class_="faint")]
    return [_input(batch.step, given) for batch in batches for given in batch.inputs]


def _input(step: int, given: SavedInput) -> Html:
    drawn = pictures(given.samples)
    cells = [_sample(given, place, None if drawn is None else drawn[place]) for place in range(len(given.samples))]
    how = f": {how_drawn(given.samples)}" if drawn is not None else ""
    head = f"Step {step}, {given.place}, the first {plural(len(cells), 'sample')}{how}"
    kind = "samples" if drawn is not None else "samples words"
    return join_html(tag("h3", head), tag("div", *cells, class_=kind))


def _sample(given: SavedInput, place: int, pixels: object) -> Html:
    labels = given.labels
    label = label_text(labels[place]) if labels is not None and place < len(labels) else ""
    caption = [tag("figcaption", label)] if label else []
    if pixels is None:
        return tag("figure", *caption, sample_text(given.samples[place]))
    words = f"sample {place}" + (f", label {label}" if label else "")
    return tag("figure", picture_html(pixels, words=words), *caption)  # type: ignore[arg-type]


def _channels(batches: Sequence[SavedBatch]) -> list[Html]:
    found = [(given.place, channel_ranges(given.samples)) for batch in batches[:1] for given in batch.inputs]
    return [
        join_html(tag("h3", f"Channels of {place}, over the samples above"), channels_table(ranges))
        for place, ranges in found
        if len(ranges) > 1
    ]


def _charts(labels: LabelCounts | None, *, has_ranges: bool) -> Html:
    found = []
    if labels is not None:
        steps = plural(labels.num_steps, "step")
        ignored = f"; {labels.num_ignored} more are ignored by the loss" if labels.num_ignored else ""
        words = f"How often each label occurred in the {steps} that were checked, on all ranks{ignored}."
        found.append(chart("labels", words=words, height=260))
    if has_ranges:
        words = "Minimum, mean and maximum of the model's first input at each step."
        found.append(chart("ranges", words=words, height=260))
    return tag("div", *found, class_="charts")


def _bars(labels: LabelCounts) -> JsonValue:
    shown = sorted(sorted(labels.counts, key=lambda label: -labels.counts[label])[:MAX_BARS])
    trace: dict[str, JsonValue] = {
        "type": "bar",
        "name": "labels",
        "x": [str(label) for label in shown],
        "y": [labels.counts[label] for label in shown],
        "marker": {"color": "var(--accent)"},
        "hovertemplate": "label %{x}: %{y}<extra></extra>",
    }
    return figure([trace], x="label", y="seen", showlegend=False, xaxis={"type": "category"})


def _range_chart(run: Run, rank: int) -> JsonValue | None:
    place = next(iter(model_inputs(run, rank).items()), None)
    if place is None or len(place[1]) < 2:
        return None
    steps = [step for step, _ in place[1]]
    curves = [
        Curve(name=name, steps=steps, values=[getattr(tensor, name) for _, tensor in place[1]], colour=colour)
        for name, colour in (("min", "--reference"), ("mean", "--accent"), ("max", "--second"))
    ]
    traces = [line(curve) for curve in curves if not curve.is_empty]
    return figure(traces, x="step", y="number") if traces else None


def _omissions(run: Run, rank: int, labels: LabelCounts | None) -> list[str]:
    notes = []
    if labels is not None and len(labels.counts) > MAX_BARS:
        notes.append(f"The {MAX_BARS} most frequent of {len(labels.counts)} labels are shown.")
    num_epochs = sum(call.call == "epoch" for call in run.calls(rank=rank))
    if num_epochs > MAX_EPOCHS:
        notes.append(f"Of {num_epochs} epochs the first {MAX_EPOCHS} are listed.")
    if len(run.ranks) > 1:
        notes.append(f"Samples and ranges are those of rank {rank}; {len(run.ranks)} ranks trained.")
    return notes


def png_address(pixels: npt.NDArray[np.uint8]) -> str:
    """Return a data URL that contains the image, so that a page needs no other file."""
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return a PNG file of pixels: height x width for grey ones, height x width x 3 for colours."""
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    height, width = pixels.shape[:2]
    kind = _GREY if pixels.ndim == 2 else _RGB
    lines = np.zeros((height, 1 + pixels[0].size), dtype=np.uint8)  # the first byte of a line: nothing is predicted
    lines[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


Array: TypeAlias = npt.NDArray[Any]
Pixels: TypeAlias = npt.NDArray[np.uint8]

MAX_SIDE = 64
"""Of a picture, in pixels; larger ones are drawn with every second or third line."""
MIN_SIDE = 4
MIN_VECTOR_LENGTH = 64
"""Vectors of at least this length, if it is a square number, are drawn: often they are flattened images."""
MAX_NUMBERS = 8
MAX_IDS = 40
_NOT_FINITE = (255, 0, 255)


def pictures(samples: Array) -> list[Pixels] | None:
    """Return a picture of each sample, all on one scale from the smallest number to the largest; None if none can be.

    What is not finite is magenta.
    """
    drawn = _as_images(samples)
    if drawn is None:
        return None
    every = math.ceil(max(drawn.shape[1:3]) / MAX_SIDE)
    drawn = drawn[:, ::every, ::every].astype(np.float64)
    finite = np.isfinite(drawn)
    low, high = _ends(samples)
    span = high - low
    levels = np.where(finite, drawn - low, 0) * (255 / span) if span > 0 else np.full(drawn.shape, 128.0)
    pixels = levels.round().clip(0, 255).astype(np.uint8)
    if pixels.shape[3] == 1 and finite.all():
        return list(pixels[..., 0])
    pixels = np.broadcast_to(pixels, (*pixels.shape[:3], 3)).copy()
    pixels[~finite.all(axis=3)] = _NOT_FINITE
    return list(pixels)


def how_drawn(samples: Array) -> str:
    """Say how samples became pictures.

    >>> how_drawn(np.zeros((2, 1, 28, 28)))
    '1 x 28 x 28, from black 0 to white 0'
    """
    shape = " x ".join(map(str, samples.shape[1:]))
    low, high = _ends(samples)
    side = math.isqrt(samples.shape[1])
    square = f", drawn as {side} x {side}" if samples.ndim == 2 else ""
    num_channels = samples.shape[channel_axis(samples)] if samples.ndim == 4 else 1
    only = "" if num_channels in COLOURS else f", channel 0 of {num_channels}"
    return f"{shape}{square}{only}, from black {format_short(low)} to white {format_short(high)}"


def sample_text(sample: Array) -> Html:
    """Return a sample as text: bytes as their letters, ids as numbers, the first of other numbers."""
    flat = sample.reshape(-1)
    if flat.dtype.kind in "iu":
        ids = " ".join(map(str, flat[:MAX_IDS].tolist())) + (" ..." if flat.size > MAX_IDS else "")
        letters = _letters(flat)
        return tag("span", *([tag("q", letters), " "] if letters else []), tag("code", ids))
    numbers = ", ".join(f"{number:.3g}" for number in flat[:MAX_NUMBERS].tolist())
    more = f" ... ({flat.size} numbers)" if flat.size > MAX_NUMBERS else ""
    return tag("code", numbers + more)


def label_text(label: Array) -> str:
    """Write what the loss was given for a sample.

    >>> label_text(np.array(3)), label_text(np.array([0.25, 1.0])), label_text(np.arange(50))
    ('3', '0.25, 1', '0, 1, 2, 3, 4, 5, 6, 7 ...')
    """
    flat = label.reshape(-1)
    words = ", ".join(f"{number:.3g}" if label.dtype.kind == "f" else str(number) for number in flat[:8].tolist())
    return words + (" ..." if flat.size > 8 else "")


def picture_html(pixels: Pixels, *, words: str) -> Html:
    """Return a picture for a page, with a text for screen readers."""
    return tag("img", src=png_address(pixels), alt=words, width=pixels.shape[1], height=pixels.shape[0])


def _as_images(samples: Array) -> Array | None:
    """Return samples as (samples, height, width, 1 or 3); None if they are no pictures."""
    is_number = samples.dtype.kind in "fu" or samples.ndim == 4
    if not is_number or not samples.size:
        return None
    if samples.ndim == 4:
        last = np.moveaxis(samples, channel_axis(samples), 3)
        images = last[..., :3] if last.shape[3] in (3, 4) else last[..., :1]
        return images if min(images.shape[1:3]) >= MIN_SIDE else None
    if samples.ndim == 3 and min(samples.shape[1:]) >= MIN_SIDE:
        return samples[..., None]
    side = math.isqrt(samples.shape[1]) if samples.ndim == 2 else 0
    if samples.ndim == 2 and samples.shape[1] >= MIN_VECTOR_LENGTH and side * side == samples.shape[1]:
        return samples.reshape(-1, side, side, 1)
    return None


def _ends(samples: Array) -> tuple[float, float]:
    finite = samples[np.isfinite(samples)] if samples.dtype.kind == "f" else samples
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def _letters(ids: Array) -> str:
    """Return ids as text if each is a printable byte."""
    values = ids[: 4 * MAX_IDS].tolist()
    is_text = len(values) > 3 and all(value in (9, 10, 13) or 32 <= value < 127 for value in values)
    return "".join(map(chr, values)) if is_text else ""


MAX_TENSORS = 20


def inputs_table(batch: BatchFacts) -> Html:
    """Return what came in from outside in one step, a line for each tensor, what the loss was given last."""
    given = [tensor for tensor in batch.tensors if not tensor.is_target]
    targets = list(batch.targets) or [tensor for tensor in batch.tensors if tensor.is_target]
    rows = [*(_tensor(tensor, tensor.place) for tensor in given), *(_tensor(tensor, "target") for tensor in targets)]
    heads = ("tensor", "shape", "dtype", "min", "mean", "max", "std", "not finite")
    return _plain_table(heads, rows[:MAX_TENSORS], name="inputs", num_texts=3)


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
    heads = ["epoch", "steps", "sampler", "order", "samples checked", "repeated in the epoch"]
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
    order = {None: "", True: "same as in the first epoch", False: "different from the first epoch"}[each.is_same_order]
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
    table = tag("table", tag("thead", head), tag("tbody", join_html(*body)), class_="plain")
    return tag("div", table, class_="scrolling", tabindex=0, role="region", aria_label=name)
