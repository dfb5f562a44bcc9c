"""The data as they came in: first samples with their labels, ranges, label counts, order and repetitions."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose.batches import model_inputs
from roundoff.diagnose.data_order import MOST_EPOCHS, LabelCounts, label_counts
from roundoff.diagnose.kept_samples import KeptBatch, KeptInput, channel_ranges, kept_batches
from roundoff.diagnose.numbers import plural
from roundoff.report.charts import Curve, chart, figure, line
from roundoff.report.markup import Html, joined, tag
from roundoff.report.run_sections.data_tables import channels_table, epochs_table, inputs_table
from roundoff.report.run_view import RunView
from roundoff.report.sample_pictures import how_drawn, in_words, label_in_words, picture_html, pictures
from roundoff.report.section import Section
from roundoff.runs import JsonValue, Run

MOST_BARS = 200
"""Of more labels those that are seen most often are drawn."""


def data_section(view: RunView) -> Section | None:
    """Show what the training was given; None where nothing was written down about it."""
    run = view.run
    rank = min(run.ranks, default=0)
    facts = run.inputs(rank=rank)
    if not facts:
        return None
    labels, ranges = label_counts(run), _range_chart(run, rank)
    batches = kept_batches(run, rank)
    return Section(
        key="data",
        title="Data",
        body=joined(
            *_samples(batches),
            tag("h3", "What came in, first"),
            inputs_table(facts[0]),
            *_channels(batches),
            _charts(labels, has_ranges=ranges is not None),
            *epochs_table(run),
        ),
        data={
            **({} if labels is None else {"labels": _bars(labels)}),
            **({} if ranges is None else {"ranges": ranges}),
        },
        thinned=_thinned(run, rank, labels),
    )


def _samples(batches: Sequence[KeptBatch]) -> list[Html]:
    if not any(batch.inputs for batch in batches):
        words = "No samples were kept; roundoff run keeps some of the first two batches, unless --kept-batches is 0."
        return [tag("p", words, class_="faint")]
    return [_input(batch.step, given) for batch in batches for given in batch.inputs]


def _input(step: int, given: KeptInput) -> Html:
    drawn = pictures(given.samples)
    cells = [_sample(given, place, None if drawn is None else drawn[place]) for place in range(len(given.samples))]
    how = f": {how_drawn(given.samples)}" if drawn is not None else ""
    head = f"Step {step}, {given.place}, the first {plural(len(cells), 'sample')}{how}"
    kind = "samples" if drawn is not None else "samples words"
    return joined(tag("h3", head), tag("div", *cells, class_=kind))


def _sample(given: KeptInput, place: int, pixels: object) -> Html:
    labels = given.labels
    label = label_in_words(labels[place]) if labels is not None and place < len(labels) else ""
    told = [tag("figcaption", label)] if label else []
    if pixels is None:
        return tag("figure", *told, in_words(given.samples[place]))
    words = f"sample {place}" + (f", label {label}" if label else "")
    return tag("figure", picture_html(pixels, words=words), *told)  # type: ignore[arg-type]


def _channels(batches: Sequence[KeptBatch]) -> list[Html]:
    found = [(given.place, channel_ranges(given.samples)) for batch in batches[:1] for given in batch.inputs]
    return [
        joined(tag("h3", f"Channels of {place}, over the samples above"), channels_table(ranges))
        for place, ranges in found
        if len(ranges) > 1
    ]


def _charts(labels: LabelCounts | None, *, has_ranges: bool) -> Html:
    found = []
    if labels is not None:
        steps = plural(labels.num_steps, "step")
        ignored = f"; {labels.num_ignored} more are to be ignored" if labels.num_ignored else ""
        words = f"How often each label was seen in the {steps} that were looked at, on all ranks{ignored}."
        found.append(chart("labels", words=words, height=260))
    if has_ranges:
        words = "Smallest, mean and largest number of the first input of the model, step by step."
        found.append(chart("ranges", words=words, height=260))
    return tag("div", *found, class_="charts")


def _bars(labels: LabelCounts) -> JsonValue:
    shown = sorted(sorted(labels.counts, key=lambda label: -labels.counts[label])[:MOST_BARS])
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


def _thinned(run: Run, rank: int, labels: LabelCounts | None) -> list[str]:
    notes = []
    if labels is not None and len(labels.counts) > MOST_BARS:
        notes.append(f"The {MOST_BARS} most frequent of {len(labels.counts)} labels are drawn.")
    num_epochs = sum(call.call == "epoch" for call in run.calls(rank=rank))
    if num_epochs > MOST_EPOCHS:
        notes.append(f"Of {num_epochs} epochs the first {MOST_EPOCHS} are listed.")
    if len(run.ranks) > 1:
        notes.append(f"Samples and ranges are those of rank {rank}; {len(run.ranks)} ranks trained.")
    return notes
