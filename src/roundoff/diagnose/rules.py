"""The rules in the order of the decision: of two findings that are equally bad, the one of the earlier rule leads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roundoff.diagnose.cancellation import cancellations
from roundoff.diagnose.consumed_overflow import consumed_overflows
from roundoff.diagnose.coverage import COVERAGE_CODES, uncovered_parameters
from roundoff.diagnose.exception import EXCEPTION_CODES, uncaught_exceptions
from roundoff.diagnose.gradient_underflow import underflowing_gradients
from roundoff.diagnose.ids_through_float import ids_through_float
from roundoff.diagnose.loss_scale import collapsed_loss_scales
from roundoff.diagnose.loss_spike import loss_spikes
from roundoff.diagnose.memcheck import MEMCHECK_CODES, wrong_memory
from roundoff.diagnose.memory import growing_memory
from roundoff.diagnose.nonfinite import nonfinite_values
from roundoff.diagnose.norm_decay import decaying_norms
from roundoff.diagnose.process import PROCESS_CODES, process_deaths
from roundoff.diagnose.replays import replays_that_differ
from roundoff.diagnose.saturated_softmax import saturated_softmaxes
from roundoff.diagnose.small_updates import updates_below_ulp
from roundoff.runs import Finding, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Something to look for in a run."""

    checks: str
    """What it looks at, in words: `--explain` lists it when nothing was found."""
    find: Callable[[Run], list[Finding]]
    codes: tuple[str, ...]
    """The rules its findings may carry, the graver first."""


NONFINITE = (
    "overflow", "loss-scale-overflow", "domain-error", "masked-softmax", "nonfinite-update", "nonfinite-input",
    "norm-statistics-nonfinite", "no-valid-targets", "step-on-nonfinite-gradients", "loss-nonfinite",
)  # fmt: skip

RULES = (
    Rule(checks="crashes, kills and hangs of the process", find=process_deaths, codes=PROCESS_CODES),
    Rule(checks="native memory, under --valgrind", find=wrong_memory, codes=MEMCHECK_CODES),
    Rule(checks="parameters that no optimizer trains", find=uncovered_parameters, codes=COVERAGE_CODES),
    Rule(checks="NaN and infinity in losses, gradients, weights, buffers", find=nonfinite_values, codes=NONFINITE),
    Rule(checks="loss scales that fall and fall", find=collapsed_loss_scales, codes=("loss-scale-collapsed",)),
    Rule(checks="infinities that are divided away", find=consumed_overflows, codes=("consumed-overflow",)),
    Rule(checks="differences that leave rounding errors only", find=cancellations, codes=("cancellation",)),
    Rule(checks="ids that went through a narrow format", find=ids_through_float, codes=("ids-through-float",)),
    Rule(checks="attention with all its weight in one place", find=saturated_softmaxes, codes=("saturated-softmax",)),
    Rule(checks="gradients too small for their format", find=underflowing_gradients, codes=("gradient-underflow",)),
    Rule(checks="updates too small for the weights' format", find=updates_below_ulp, codes=("update-below-ulp",)),
    Rule(checks="norms under weight decay", find=decaying_norms, codes=("norm-weight-decay",)),
    Rule(checks="replays that differ from their step", find=replays_that_differ, codes=("nondeterministic-step",)),
    Rule(checks="memory that grows", find=growing_memory, codes=("graph-leak", "memory-growth")),
    Rule(checks="jumps of the loss", find=loss_spikes, codes=("loss-spike",)),
    Rule(checks="exceptions that ended the training", find=uncaught_exceptions, codes=EXCEPTION_CODES),
)

PROCEDURE = tuple(code for rule in RULES for code in rule.codes)
"""Every code in the order of the decision."""

_BEHIND_NONFINITE = ("loss-scale-collapsed", "cancellation")

FOLLOWS_FROM = {
    "gradient-underflow": ("consumed-overflow", "saturated-softmax"),
    **dict.fromkeys(("overflow", "domain-error", "nonfinite-update", "norm-statistics-nonfinite"), _BEHIND_NONFINITE),
    "loss-nonfinite": (*NONFINITE[:-1], *_BEHIND_NONFINITE),
    "step-on-nonfinite-gradients": (*NONFINITE[:-2], *_BEHIND_NONFINITE),
    "loss-spike": NONFINITE,
    "exception": NONFINITE,
}
"""Findings that a graver one of an earlier or the same step explains: they become its related ones."""
