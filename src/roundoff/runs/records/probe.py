"""What probes measured: experiments with one step of the training, each with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

from roundoff.runs.files.plain_json import JsonValue, object_from, optional_field


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomOp:
    """An op that drew random numbers in eval mode."""

    site: str
    op: str
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalModeProbe:
    """The same batch in train mode, and twice in eval mode."""

    step: int
    probe: Literal["eval-mode"] = "eval-mode"
    train_loss: float | None
    eval_loss: float | None
    eval_again: float | None
    random_ops: tuple[RandomOp, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvedTerm:
    """An addend of the loss: in the whole batch, and in each half of it."""

    value: float
    halves: tuple[float, ...]
    factor: float
    """What the numbers that it adds up are multiplied by."""
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfBatchProbe:
    """In eval mode: the whole batch, and each half of it."""

    step: int
    probe: Literal["half-batch"] = "half-batch"
    loss: float | None
    halves: tuple[float | None, ...]
    size: int | None = None
    """How many samples the whole batch has."""
    terms: tuple[HalvedTerm, ...] = ()
    """The addends of the loss, if it is a sum of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverfitProbe:
    """The losses of the step taken again and again with one batch."""

    step: int
    probe: Literal["overfit"] = "overfit"
    losses: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorProbe:
    """How well a small model of our own predicts the targets of samples that it was not given."""

    step: int
    probe: Literal["predictor"] = "predictor"
    num_samples: int
    explained: float
    """The share of the variance of the targets."""
    explained_by_chance: float
    """The most of several trials with shuffled targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMixingProbe:
    """One sample was changed: which other samples' outputs changed with it, and where that begins."""

    step: int
    probe: Literal["batch-mixing"] = "batch-mixing"
    sample: int
    changed: tuple[int, ...]
    site: str | None
    function: str = ""
    """The torch function that first computed something of other samples from it."""
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusedAxes:
    """A call that takes one axis of a tensor for another."""

    kind: Literal["reshape", "classes", "softmax", "positions"]
    """Numbers of different places share a row; classes do; weights add up along the wrong axis; a code differs from
    sample to sample instead of from place to place."""
    function: str
    site: str
    source: str | None
    given: tuple[int, ...]
    """The shape that went in."""
    made: tuple[int, ...]
    """The shape that came out, or that of the operand along the batch."""
    axis: int | None = None
    """The axis of what went in: the one that is mixed, or along which the weights add up."""
    reader: str = ""
    """The function that uses the result as if the axes were right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxesProbe:
    """The forward of a step in eval mode: calls that take one axis for another."""

    step: int
    probe: Literal["axes"] = "axes"
    found: tuple[ConfusedAxes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFlowProbe:
    """Tokens of a row were changed, in eval mode: which scores changed with them. None where that was not tried."""

    step: int
    probe: Literal["token-flow"] = "token-flow"
    length: int
    """The number of tokens in a row."""
    is_next_token: bool
    """Whether the target of each position is the token after it."""
    sees_later: bool | None
    """Whether scores change with a token that comes later."""
    sees_first: bool | None
    """Whether the scores at the last position change with the first token."""
    sees_order: bool | None
    """Whether they change when two tokens are swapped, the first or, where a row has one score, those after it."""
    sees_padding: bool | None
    """Whether the scores of real tokens change with what a mask hides."""
    sees_tokens: bool | None
    """Whether they change with other real tokens."""
    has_one_score: bool = optional_field(False)
    """Whether a row has one score in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeOfParameter:
    """The slope of the loss along the gradient of one parameter, as a multiple of what the gradient says."""

    site: str
    parameter: str | None
    ratio: float | None
    ratio_further: float | None = optional_field(None)
    """The same over a walk three times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionProbe:
    """The slope of the loss along its gradient, in fp64."""

    step: int
    probe: Literal["direction"] = "direction"
    expected: float
    """What the gradient says."""
    measured: float
    """What a walk along it gives."""
    ratio: float
    functions: tuple[str, ...]
    """The user's own autograd functions in the graph."""
    by_site: tuple[SlopeOfParameter, ...] = optional_field(())
    """By parameter; only if there are such functions, or the ratio is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCopy:
    """A tensor that looked like a weight and was written to in every step."""

    num_writes: int
    moved: float
    dtype: str | None = optional_field(None)
    still_share: float | None = optional_field(None)
    """In a narrow format, of its numbers that are farther from the weight's than the next number of the format: the
    share that none of the writes changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragesProbe:
    """How far one weight went in the first steps, and who else holds or copies it."""

    step: int
    probe: Literal["averages"] = "averages"
    parameter: str | None
    moved: float
    copies: tuple[WeightCopy, ...]
    scales: tuple[float, ...]
    """The factors by which something other than the optimizer made it smaller."""
    num_holders: int
    """How many others hold its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageTwinProbe:
    """A copy of a model that was evaluated: which of its tensors followed the model."""

    step: int
    probe: Literal["average-twin"] = "average-twin"
    kind: str
    """The class of the copy."""
    num_moving: int
    """How many tensors of the model have changed since step 4."""
    num_followed: int
    """How many of those have changed in the copy."""
    still: tuple[str, ...]
    """Those that have not."""
    buffers: tuple[str, ...]
    """Of these, the buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalInputProbe:
    """What a trained model was given in eval mode, without gradients."""

    step: int
    probe: Literal["eval-input"] = "eval-input"
    place: str
    """Where it went, as for the batches of the training: `<model>[0]`."""
    shape: tuple[int, ...]
    mean: float
    std: float
    min: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomDrawsProbe:
    """A line of the loop that has drawn random numbers again that it drew in earlier steps."""

    step: int
    """When that had happened often enough."""
    probe: Literal["random-draws"] = "random-draws"
    first_step: int
    """When the line drew first."""
    function: str
    source: str
    shape: tuple[int, ...]
    num_steps: int
    """In how many steps it drew."""
    num_distinct: int
    """How many different tensors it drew in these."""
    hash: str
    """Of the last one, as for the tensors of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTwinProbe:
    """A model that began as an exact copy of a trained one, and that the loop asks without gradients."""

    step: int
    probe: Literal["target-twin"] = "target-twin"
    site: str
    parameter: str | None
    """The first of the trained parameters that it is a copy of."""
    num_calls: int
    has_moved: bool
    """Whether any of its weights has changed since it was first asked."""
    model_has_moved: bool
    inputs: tuple[str, ...]
    """The hashes of its first inputs."""
    num_pairs: int = 0
    """How often two calls in a row were looked at."""
    num_current: int = 0
    """In how many of those pairs it had the weights of the model both times, and the model had moved in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemadeLayerProbe:
    """Layers that a model makes anew in each forward, with other random weights each time."""

    step: int
    probe: Literal["remade-layer"] = "remade-layer"
    site: str
    """Of the module that makes it, and the kind of layer: `blocks.0.<Conv2d>`."""
    num_made: int
    """How many different ones were seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopArgument:
    """An argument of a function that the loop called."""

    num_elements: int
    num_zero: int
    min: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopValueProbe:
    """A function of the loop, outside of any graph, whose result is not finite although its arguments are."""

    step: int
    """The step that used the result, or would have."""
    probe: Literal["loop-value"] = "loop-value"
    function: str
    """`div`, `log`, `std`."""
    source: str | None
    num_bad: int
    num_elements: int
    num_nan: int
    arguments: tuple[LoopArgument, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """A term of a loss that reaches no parameter that an optimizer holds."""

    value: float | None
    kind: Literal["number", "computed", "outside", "elsewhere", "not-stepped"]
    """A Python number; a tensor without a gradient, computed from the models or from elsewhere; a term whose gradient
    reaches only parameters that no optimizer holds, or only those of optimizers that do not step in this step."""
    source: str | None
    """The line that adds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTermsProbe:
    """What the loss of a step is the sum of."""

    step: int
    probe: Literal["loss-terms"] = "loss-terms"
    loss: float
    num_terms: int
    """The terms that have a gradient."""
    terms: tuple[LossTerm, ...]
    """Those that reach no parameter that an optimizer holds, or none of one that steps in this step."""
    reached: tuple[str, ...] = optional_field(())
    """The lines of those that do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWithoutGradient:
    """The rows of one weight that have had no gradient other than 0 so far."""

    name: str
    num_rows: int
    rows: tuple[tuple[int, int], ...]
    """Runs of such rows: the first, and the one after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientRowsProbe:
    """Which rows of the weights had a gradient in the first steps."""

    step: int
    probe: Literal["gradient-rows"] = "gradient-rows"
    num_steps: int
    num_weights: int
    """How many weights were looked at."""
    weights: tuple[RowsWithoutGradient, ...]
    """Those of which some rows had none, and others had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroShares:
    """The share of zeros in the gradient of one parameter."""

    name: str
    zero_share: float
    subnormal_share: float
    wide_zero_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WideProbe:
    """A narrow step computed wide."""

    step: int
    probe: Literal["wide"] = "wide"
    loss: float | None
    wide_loss: float | None
    parameters: tuple[ZeroShares, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeProbe:
    """The loss of a step whose loss jumped, with another batch and in an earlier state."""

    step: int
    probe: Literal["spike"] = "spike"
    loss: float | None
    other_batch: float | None
    """With the batch of the step before it."""
    earlier_state: float | None
    """In the state before that step."""
    previous: float | None = None
    """The step before it, played again in its own state."""
    previous_in_training: float | None = None
    """The loss that it had in the training: another one means that the loop depends on more than its tensors."""
    changed_attributes: tuple[str, ...] = ()
    """Attributes of modules that the script had changed since: `<model>.gain was 1.0, is -60.0`."""
    with_changed: float | None = None
    """The loss of the step, played again with them."""
    changed_shapes: tuple[str, ...] = ()
    """Shapes of samples that differ from all steps before it: `(2, 1) to (6, 1)`."""
    batch_size: int | None
    worst_sample: int | None
    """The sample of its batch with the largest loss."""
    worst_loss: float | None
    """What that sample costs by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfProbe:
    """Steps that led to a bad one, or the last ones, played again with one thing changed."""

    step: int
    """The last step that was played: the bad one, if there is one."""
    probe: Literal["what-if"] = "what-if"
    rule: str | None = None
    """The finding whose fix was tried; None for what was tried about a bad step."""
    effect: str | None = None
    """What the change did, if it is the fix of a finding."""
    first_step: int
    """The first step that was played."""
    change: str
    """Its name: `rate`, `clip`, `wide`, `clear`."""
    text: str
    """What was changed: `a tenth of the learning rate`."""
    is_good: bool
    """Whether losses and weights stayed finite, and a loss that had jumped did not."""
    is_spike: bool
    """Whether the bad step is one whose loss jumped."""
    losses: tuple[float | None, ...]
    """The losses of the steps, up to the first that is bad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricProbe:
    """One line of the loop that turns the outputs of a trained model into choices, or compares them with targets."""

    step: int
    """When the line was first seen to do so."""
    probe: Literal["metric"] = "metric"
    kind: Literal["threshold", "choice", "match", "error", "loss"]
    """A number against a threshold, the largest along an axis, `==` with targets, a difference, a loss function."""
    source: str | None = None
    functions: tuple[str, ...] = ()
    """What has changed the numbers since the model returned them."""
    shape: tuple[int, ...] = ()
    other_shape: tuple[int, ...] = ()
    """Of what the numbers meet: the targets."""
    axis: int | None = None
    threshold: float | None = None
    min: float | None = None
    max: float | None = None
    share: float | None = None
    """Which part of the answers is true."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How often the targets have each of their values, if they are few whole numbers."""
    counts_all: bool = False
    """Whether the matches of all targets are averaged, and none was left out."""
    num_calls: int = 0
    """From how many calls of a model without gradients, of which `num_training` were in training mode."""
    num_training: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalMatchProbe:
    """The choices of a trained model in its last evaluation, and the class indices that they were compared with."""

    step: int
    probe: Literal["eval-match"] = "eval-match"
    source: str | None = None
    num_samples: int
    share: float
    """Which part of the choices is right."""
    renamed_share: float
    """Which part would be right if every class had the number that fits best, each number once."""
    names: Mapping[str, int]
    """That number, by the class that the model chose."""
    num_moved: int = 0
    """How many classes are chosen often, and nearly always where the target is one other class."""
    own_share: float | None = None
    """Which part is right of the targets that came in the same batch as the inputs, where these are others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTrialProbe:
    """What a trained model chose in its last evaluation, and with inputs made more like those of training."""

    step: int
    probe: Literal["eval-trial"] = "eval-trial"
    num_samples: int
    train_share: float
    """Which part of its choices is right on training samples."""
    share: float
    """And in the evaluation."""
    change: Literal["statistics", "channels"]
    """The change that helps most: each feature gets the mean and deviation of training, or channels are reversed."""
    changed_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseTargetProbe:
    """Targets with a number per pixel: how they lie on their inputs, and whether class indices are interpolated."""

    step: int
    probe: Literal["dense-target"] = "dense-target"
    num_samples: int
    num_edges: int
    """Pixels between two that differ by two or more; `between_share` of them have a value between these."""
    between_share: float
    equal_share: float
    """The share of pixels that are equal to their neighbour."""
    turn: str
    """The turn that makes a part of the targets fit their inputs better, `flipped left to right`; empty if none."""
    turned_share: float
    """That part, and the part that fits better as it is."""
    kept_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedLoaderProbe:
    """A DataLoader over data that no other has, from which nothing was ever read."""

    step: int
    probe: Literal["unused-loader"] = "unused-loader"
    name: str
    """The variable of the script that holds it; empty if there is none."""
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshapeProbe:
    """A line outside of any graph that reshapes a tensor to the shape of one with permuted dimensions."""

    step: int
    probe: Literal["reshape"] = "reshape"
    source: str
    shape: tuple[int, ...]
    new_shape: tuple[int, ...]


Probe: TypeAlias = (
    EvalModeProbe | HalfBatchProbe | OverfitProbe | BatchMixingProbe | AxesProbe | TokenFlowProbe | DirectionProbe
    | AveragesProbe | AverageTwinProbe | LoopValueProbe | LossTermsProbe | GradientRowsProbe | WideProbe | SpikeProbe
    | WhatIfProbe | EvalInputProbe | RandomDrawsProbe | TargetTwinProbe | RemadeLayerProbe
    | PredictorProbe | MetricProbe | EvalMatchProbe | EvalTrialProbe | DenseTargetProbe
    | UnusedLoaderProbe | ReshapeProbe
)  # fmt: skip
P = TypeVar("P", bound=Probe)

PROBE_TYPES: Mapping[str, type[Probe]] = {
    "eval-mode": EvalModeProbe,
    "half-batch": HalfBatchProbe,
    "overfit": OverfitProbe,
    "batch-mixing": BatchMixingProbe,
    "axes": AxesProbe,
    "token-flow": TokenFlowProbe,
    "direction": DirectionProbe,
    "averages": AveragesProbe,
    "average-twin": AverageTwinProbe,
    "loop-value": LoopValueProbe,
    "loss-terms": LossTermsProbe,
    "gradient-rows": GradientRowsProbe,
    "wide": WideProbe,
    "spike": SpikeProbe,
    "what-if": WhatIfProbe,
    "eval-input": EvalInputProbe,
    "random-draws": RandomDrawsProbe,
    "target-twin": TargetTwinProbe,
    "remade-layer": RemadeLayerProbe,
    "predictor": PredictorProbe,
    "metric": MetricProbe,
    "eval-match": EvalMatchProbe,
    "eval-trial": EvalTrialProbe,
    "dense-target": DenseTargetProbe,
    "unused-loader": UnusedLoaderProbe,
    "reshape": ReshapeProbe,
}


def probe_from(value: Mapping[str, JsonValue]) -> Probe | None:
    """Read what a probe measured; None of a probe that only a newer version knows."""
    kind = PROBE_TYPES.get(str(value.get("probe")))
    return None if kind is None else object_from(kind, value)
