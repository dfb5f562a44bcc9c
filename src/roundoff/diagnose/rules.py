"""The rules in the order of the decision: of two findings that are equally bad, the one of the earlier rule leads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roundoff.diagnose.data.epochs import duplicate_samples, mutated_datasets, repeated_orders
from roundoff.diagnose.data.input_values import colliding_paddings, constant_inputs, large_inputs
from roundoff.diagnose.data.labels import independent_labels, leaking_labels, single_classes
from roundoff.diagnose.loop.gradient_clearing import CLEARING_CODES, wrongly_cleared_gradients
from roundoff.diagnose.loop.learning_rate import large_rates, tiny_rates, zero_rates
from roundoff.diagnose.loop.norm_weight_decay import decaying_norms
from roundoff.diagnose.loop.optimizer_steps import double_steps, missing_steps
from roundoff.diagnose.loop.scaled_gradients import SCALED_CODES, scaled_gradients
from roundoff.diagnose.loop.schedule_steps import SCHEDULE_CODES, misplaced_schedules
from roundoff.diagnose.loop.training_mode import training_in_eval_mode
from roundoff.diagnose.loss.course import SHAPE_CODES, initial_losses, shapes_of_the_loss
from roundoff.diagnose.loss.evaluation import evaluation_gaps, random_evaluations, rising_eval_losses
from roundoff.diagnose.loss.factor import summed_losses, unbounded_losses, undivided_losses
from roundoff.diagnose.loss.spike import loss_spikes
from roundoff.diagnose.model.backward import cut_graphs, wrong_backwards
from roundoff.diagnose.model.batch_mixing import mixed_batches
from roundoff.diagnose.model.checkpoint_loading import checkpoints_not_loaded, lost_optimizer_states
from roundoff.diagnose.model.coverage import COVERAGE_CODES, uncovered_parameters
from roundoff.diagnose.model.dead_units import dead_units
from roundoff.diagnose.model.depth import DEPTH_CODES, numbers_by_depth
from roundoff.diagnose.model.nonlinearities import affine_networks, doubled_softmax
from roundoff.diagnose.model.norm_statistics import frozen_statistics, lost_statistics, tiny_norm_batches
from roundoff.diagnose.model.start_values import START_CODES, stuck_start_values
from roundoff.diagnose.model.weight_copies import broken_averages, broken_ties
from roundoff.diagnose.nonfinite.consumed_overflow import consumed_overflows
from roundoff.diagnose.nonfinite.loss_scale_collapse import collapsed_loss_scales
from roundoff.diagnose.nonfinite.values import nonfinite_values
from roundoff.diagnose.numbers.cancellation import cancellations
from roundoff.diagnose.numbers.ids_through_float import ids_through_float
from roundoff.diagnose.numbers.saturated_softmax import saturated_softmaxes
from roundoff.diagnose.numbers.underflow import underflowing_gradients, updates_below_ulp
from roundoff.diagnose.process.deaths import PROCESS_CODES, process_deaths
from roundoff.diagnose.process.memcheck import MEMCHECK_CODES, wrong_memory
from roundoff.diagnose.process.memory_growth import growing_memory
from roundoff.diagnose.process.nondeterminism import replays_that_differ
from roundoff.diagnose.process.uncaught_exception import EXCEPTION_CODES, uncaught_exceptions
from roundoff.diagnose.ranks.collectives import mismatched_collectives, unused_parameters
from roundoff.diagnose.ranks.data_sharding import RANK_DATA_CODES, data_of_ranks
from roundoff.diagnose.ranks.drift import RANK_GRADIENT_CODES, buffers_that_differ, ranks_that_drift_apart
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
    Rule(checks="gradients that end before they reach a parameter", find=cut_graphs, codes=("graph-cut",)),
    Rule(checks="copies of an embedding", find=broken_ties, codes=("tie-broken",)),
    Rule(checks="what was loaded into models", find=checkpoints_not_loaded, codes=("checkpoint-not-loaded",)),
    Rule(checks="optimizer state after a load", find=lost_optimizer_states, codes=("optimizer-state-lost",)),
    Rule(checks="averages of the weights", find=broken_averages, codes=("ema-broken",)),
    Rule(checks="probabilities where logits belong", find=doubled_softmax, codes=("double-softmax",)),
    Rule(checks="start values that cannot learn", find=stuck_start_values, codes=START_CODES),
    Rule(checks="units that give nothing", find=dead_units, codes=("dead-units",)),
    Rule(checks="numbers that grow or shrink with depth", find=numbers_by_depth, codes=DEPTH_CODES),
    Rule(checks="the first loss", find=initial_losses, codes=("initial-loss",)),
    Rule(checks="samples that depend on each other", find=mixed_batches, codes=("batch-mixing",)),
    Rule(checks="backwards of own functions", find=wrong_backwards, codes=("wrong-backward",)),
    Rule(checks="nonlinearities between layers", find=affine_networks, codes=("affine-network",)),
    Rule(checks="inputs that are constant", find=constant_inputs, codes=("constant-input",)),
    Rule(checks="labels that are all the same", find=single_classes, codes=("single-class",)),
    Rule(checks="targets that are inputs", find=leaking_labels, codes=("label-leak",)),
    Rule(checks="padding rows that are tokens", find=colliding_paddings, codes=("padding-collision",)),
    Rule(checks="norms that learn no statistics", find=frozen_statistics, codes=("running-stats-frozen",)),
    Rule(checks="learning rates of 0", find=zero_rates, codes=("lr-zero",)),
    Rule(checks="gradients that are still scaled", find=scaled_gradients, codes=SCALED_CODES),
    Rule(checks="gradients cleared too early or never", find=wrongly_cleared_gradients, codes=CLEARING_CODES),
    Rule(checks="two steps on one backward", find=double_steps, codes=("double-step",)),
    Rule(checks="optimizers that never step", find=missing_steps, codes=("missing-step",)),
    Rule(checks="when schedules are stepped", find=misplaced_schedules, codes=SCHEDULE_CODES),
    Rule(checks="training in eval mode", find=training_in_eval_mode, codes=("eval-mode-training",)),
    Rule(checks="losses that are sums over the batch", find=summed_losses, codes=("loss-sum-reduction",)),
    Rule(checks="accumulated gradients", find=undivided_losses, codes=("accumulation-not-averaged",)),
    Rule(checks="losses that can fall for ever", find=unbounded_losses, codes=("loss-unbounded-below",)),
    Rule(checks="updates as large as the weights", find=large_rates, codes=("lr-too-high",)),
    Rule(checks="NaN and infinity in losses, gradients, weights, buffers", find=nonfinite_values, codes=NONFINITE),
    Rule(checks="loss scales that fall and fall", find=collapsed_loss_scales, codes=("loss-scale-collapsed",)),
    Rule(checks="infinities that are divided away", find=consumed_overflows, codes=("consumed-overflow",)),
    Rule(checks="differences that leave rounding errors only", find=cancellations, codes=("cancellation",)),
    Rule(checks="ids that went through a narrow format", find=ids_through_float, codes=("ids-through-float",)),
    Rule(checks="attention with all its weight in one place", find=saturated_softmaxes, codes=("saturated-softmax",)),
    Rule(checks="gradients too small for their format", find=underflowing_gradients, codes=("gradient-underflow",)),
    Rule(checks="updates too small for the weights' format", find=updates_below_ulp, codes=("update-below-ulp",)),
    Rule(checks="norms under weight decay", find=decaying_norms, codes=("norm-weight-decay",)),
    Rule(checks="inputs far from 1", find=large_inputs, codes=("input-scale",)),
    Rule(checks="parameters of parallel models", find=unused_parameters, codes=("unused-parameter",)),
    Rule(checks="ranks that drift apart", find=ranks_that_drift_apart, codes=RANK_GRADIENT_CODES),
    Rule(checks="what ranks read", find=data_of_ranks, codes=RANK_DATA_CODES),
    Rule(checks="buffers of ranks", find=buffers_that_differ, codes=("rank-buffers-differ",)),
    Rule(checks="steps that ranks do not share", find=mismatched_collectives, codes=("collective-mismatch",)),
    Rule(checks="replays that differ from their step", find=replays_that_differ, codes=("nondeterministic-step",)),
    Rule(checks="memory that grows", find=growing_memory, codes=("graph-leak", "memory-growth")),
    Rule(checks="updates too small to matter", find=tiny_rates, codes=("lr-too-low",)),
    Rule(checks="jumps of the loss", find=loss_spikes, codes=("loss-spike",)),
    Rule(checks="data sets that change", find=mutated_datasets, codes=("dataset-mutated",)),
    Rule(checks="samples that come again within an epoch", find=duplicate_samples, codes=("duplicate-samples",)),
    Rule(checks="norms that lose their statistics", find=lost_statistics, codes=("running-stats-lost",)),
    Rule(checks="norms over too few samples", find=tiny_norm_batches, codes=("tiny-norm-batch",)),
    Rule(checks="random numbers in eval mode", find=random_evaluations, codes=("stochastic-eval",)),
    Rule(checks="the same batch in train and eval mode", find=evaluation_gaps, codes=("train-eval-gap",)),
    Rule(checks="labels independent of the inputs", find=independent_labels, codes=("labels-independent",)),
    Rule(checks="losses of evaluations", find=rising_eval_losses, codes=("eval-loss-rising",)),
    Rule(checks="the order of the data", find=repeated_orders, codes=("data-not-shuffled",)),
    Rule(checks="the course of the loss", find=shapes_of_the_loss, codes=SHAPE_CODES),
    Rule(checks="exceptions that ended the training", find=uncaught_exceptions, codes=EXCEPTION_CODES),
)

PROCEDURE = tuple(code for rule in RULES for code in rule.codes)
"""Every code in the order of the decision."""

_BLOWS_UP = (
    "step-on-scaled-gradients", "missing-zero-grad", "double-step", "loss-sum-reduction", "loss-unbounded-below",
    "lr-too-high",
)  # fmt: skip
_STANDS_STILL = (
    "lr-zero", "clip-before-unscale", "zero-grad-before-step", "missing-step", "scheduler-rate", "update-below-ulp",
    "gradient-underflow", "vanishing-gradients", "dead-units", "saturated-softmax", "consumed-overflow",
)  # fmt: skip
_BEHIND_NONFINITE = ("loss-scale-collapsed", "cancellation", *_BLOWS_UP)

_BREAKS_EVALUATION = ("running-stats-frozen", "running-stats-lost", "stochastic-eval", "norm-statistics-nonfinite")

FOLLOWS_FROM = {
    "input-scale": ("overflow", "consumed-overflow", "domain-error", "masked-softmax", "nonfinite-update"),
    "train-eval-gap": (*_BREAKS_EVALUATION, "tiny-norm-batch"),
    "eval-loss-rising": (*_BREAKS_EVALUATION, "train-eval-gap"),
    "data-not-shuffled": ("duplicate-samples", "dataset-mutated", "epoch-order-repeated"),
    "initial-loss": ("exploding-activations", "input-scale"),
    "dead-units": ("zero-init", "exploding-activations", "input-scale", "constant-input"),
    "vanishing-gradients": ("zero-init", "symmetric-init", "dead-units", "constant-input"),
    "gradient-underflow": ("consumed-overflow", "saturated-softmax"),
    **dict.fromkeys(("overflow", "domain-error", "nonfinite-update", "norm-statistics-nonfinite"), _BEHIND_NONFINITE),
    "loss-nonfinite": (*NONFINITE[:-1], *_BEHIND_NONFINITE),
    "step-on-nonfinite-gradients": (*NONFINITE[:-2], *_BEHIND_NONFINITE),
    "loss-spike": (*NONFINITE, *_BLOWS_UP, "input-scale"),
    "gradients-not-reduced": ("unused-parameter",),
    "rank-buffers-differ": ("gradients-not-reduced", "rank-init-mismatch"),
    "hang": ("collective-mismatch",),
    "exception": ("unused-parameter", "collective-mismatch", *NONFINITE, "step-on-scaled-gradients"),
    "lr-too-high": (*_BLOWS_UP[:-1], "exploding-activations", "input-scale"),
    "lr-too-low": _STANDS_STILL,
    "running-stats-frozen": ("eval-mode-training",),
    "running-stats-lost": ("zero-init", "dead-units", "constant-input"),
    **{shape: tuple(code for code in PROCEDURE if code not in SHAPE_CODES) for shape in SHAPE_CODES},
}
"""Findings that a graver one of an earlier or the same step explains: they become its related ones."""
