"""Random numbers that are drawn anew in every step and are always the same."""

from __future__ import annotations

from collections.abc import Iterator

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import model_inputs
from roundoff.diagnose.rule import Code, on_first_rank, rule, warning
from roundoff.runs import Event, Finding, RandomDrawsProbe, Run
from roundoff.runs.records.event import bare_name, ops_of
from roundoff.words import plural

_DRAW = frozenset({
    "randn", "randn_like", "rand", "rand_like", "normal", "uniform", "bernoulli", "exponential", "native_dropout",
})  # fmt: skip
_MIN_ELEMENTS = 32
"""Of what a model draws in two steps: a mask of few elements may be the same by chance."""
_FEW_ZEROS = 0.1
"""A mask that hides, or keeps, less than this share may be the same by chance as well."""
_MIN_SHARE, _MIN_SHARE_USED = 0.9, 0.2
"""Noise for the training is drawn in nearly every step, or in every few and is used in them, where several optimizers
take turns; that of a picture for the report is drawn now and then."""


@rule(
    Code(
        name="random-numbers-repeated",
        means="Noise that should be new in every step is the same in all of them, or in every epoch: the generator is "
        "seeded again and again. The model learns these numbers instead of their distribution.",
        fix="Seed once, before the loop. For reproducible noise in an evaluation use a `torch.Generator` of its own.",
    ),
    order=1425,
    checks="random numbers that repeat those of earlier steps",
    needs=[needs.some(lambda run: run.probes(RandomDrawsProbe) or len(run.steps) > 1, "no two steps were recorded")],
)
@on_first_rank
def repeated_numbers(run: Run, rank: int) -> Finding | None:
    """Find noise of the batch's size that a line draws in every step and has drawn before, bit for bit.

    What the loop draws is compared over many steps, what a model draws in the two that were recorded op by op. Numbers
    with another size than the batch may be a fixed projection that is made anew to save memory.
    """
    sizes = {tensor.shape[0] for seen in model_inputs(run, rank).values() for _, tensor in seen if tensor.shape}
    used = {tensor.hash for batch in run.inputs(rank=rank) for tensor in batch.tensors}
    for probe in run.probes(RandomDrawsProbe):
        share = probe.num_steps / (probe.step - probe.first_step + 1)
        if probe.shape[0] in sizes and share >= (_MIN_SHARE_USED if probe.hash in used else _MIN_SHARE):
            return _finding_in_loop(probe, rank)
    first, second = ({_place(event): event for event in _drawn(run, step, rank)} for step in (0, 1))
    for place, event in first.items():
        other = second.get(place)
        if other is not None and other.hash == event.hash and (event.shape[0] in sizes or _is_dropout(event)):
            return _finding_in_model(event, rank)
    return None


def _drawn(run: Run, step: int, rank: int) -> Iterator[Event]:
    if step not in run.steps:
        return
    for op in ops_of(run.iter_events(step=step, rank=rank, phase="forward")):
        event = op.outputs[-1] if op.bare in _DRAW and op.outputs else None  # of a dropout, the mask
        if event is not None and event.shape and event.num_elements >= _MIN_ELEMENTS:
            zeros = event.num_zero / event.num_elements
            if (zeros == 0 and not _is_dropout(event)) or _FEW_ZEROS < zeros < 1 - _FEW_ZEROS:
                yield event


def _place(event: Event) -> tuple[object, ...]:
    return event.site, event.op, event.nth, event.output, event.shape, event.microbatch


def _is_dropout(event: Event) -> bool:
    return bare_name(event.op) in ("bernoulli", "native_dropout")


def _finding_in_loop(probe: RandomDrawsProbe, rank: int) -> Finding:
    what = "always the same" if probe.num_distinct == 1 else f"only {probe.num_distinct} different sets"
    times = "every step" if probe.num_distinct == 1 else f"{plural(probe.num_steps, 'step')}"
    return warning(
        rule="random-numbers-repeated",
        confidence=0.95,
        step=probe.first_step,
        rank=rank,
        phase="forward",
        source=probe.source,
        title=f"{probe.function} draws the same numbers again and again",
        why=f"in {times} from {probe.first_step} to {probe.step} this line draws {_shape(probe.shape)} numbers, and "
        f"they are {what}, bit for "
        "bit: the generator is set back in between",
        fix="seed once, before the loop: no manual_seed, and no generator with a fixed seed, inside of it",
        evidence=({"num_steps": probe.num_steps, "num_distinct": probe.num_distinct, "shape": [*probe.shape]},),
    )


def _finding_in_model(event: Event, rank: int) -> Finding:
    what = "dropout mask" if _is_dropout(event) else "noise"
    return warning(
        rule="random-numbers-repeated",
        confidence=0.9,
        step=1,
        rank=rank,
        phase="forward",
        site=event.site,
        op=event.op_name,
        source=event.source,
        title=f"the {what} of {event.site} is the same in every step",
        why=f"in steps 0 and 1 {event.op_name} draws the same {_shape(event.shape)} numbers, bit for bit: the "
        "generator is set back in between",
        fix="seed once, before the loop: no manual_seed, and no generator with a fixed seed, inside of it",
        evidence=({"hash": f"{event.hash:016x}", "shape": [*event.shape]},),
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
