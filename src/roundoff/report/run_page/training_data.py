"""The data of the training: first samples with labels, ranges, label counts, order and repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roundoff.diagnose.batches import model_inputs
from roundoff.diagnose.data.sample_order import MAX_EPOCHS, EpochSeen, LabelCounts, epochs_seen, label_counts
from roundoff.diagnose.data.saved_samples import ChannelRange, SavedBatch, SavedInput, channel_ranges, saved_batches
from roundoff.diagnose.run_view import RunView
from roundoff.report.charts import Curve, chart, figure, line
from roundoff.report.html_table import percent
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.run_page.sample_pictures import how_drawn, label_text, picture_html, pictures, sample_text
from roundoff.report.run_page.section import Section
from roundoff.runs import BatchFacts, JsonValue, Run, TensorFacts
from roundoff.words import plural

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


MAX_BARS = 200
"""Of more labels those that are seen most often are drawn."""


def data_section(view: RunView) -> Section | None:
    """Show what the training was given; None where nothing was written down about it."""
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
