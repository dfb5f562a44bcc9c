"""Facts about a training: what came into its steps, and its parameters, modules and optimizers as it began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from roundoff.runs.files.plain_json import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """One tensor that came from outside."""

    place: str
    """Where it went: `<model>[0]`, `cross_entropy[1]`, `model:attention_mask`."""
    shape: tuple[int, ...]
    dtype: str
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    num_nonfinite: int = 0
    hash: str = ""
    """Of its bits, in hex."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How often each value occurs, for whole numbers with few different ones."""
    inner_counts: Mapping[str, int] = field(default_factory=dict)
    """The same of rows of whole numbers, without the equal values that a row begins or ends with: no padding."""
    is_target: bool = False
    """Whether the loss was computed from it, not by way of a model."""
    is_only_first: bool = False
    """Whether the step also computes tensors that go there, as a state that begins with zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """Everything that came into one step from outside; the hashes of its samples are in the table of hashes."""

    step: int
    tensors: tuple[TensorFacts, ...] = ()
    targets: tuple[TensorFacts, ...] = ()
    """What the loss functions were given as targets, wherever it came from."""
    criterion: str | None = None
    """The last loss function the step called: `cross_entropy`, `MSELoss`."""
    criterion_settings: Mapping[str, JsonValue] = field(default_factory=dict)
    """`reduction`, `ignore_index`, `weight`, ... as far as they are plain values."""
    rows_sum_to_one: bool | None = None
    """Whether each row of the criterion's first argument adds up to 1; None if it has none."""
    num_classes: int | None = None
    """The size of the criterion's class dimension."""
    num_asked: int = 0
    """How often the loop called a model without gradients since the step before, in steps watched in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionCall:
    """One call of a loss function in a step that was replayed, wherever it was made: what it was fed with."""

    step: int
    function: str
    """`cross_entropy`, or `sub` and `mul` where every sample meets every other in a difference or product."""
    source: str | None = None
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    """`reduction`, `ignore_index`, `log_target`, `label_smoothing`, as far as they are plain values."""
    is_weighted: bool = False
    """Whether classes or samples have weights of their own."""
    class_weights: tuple[float, ...] = ()
    """Those of the classes; of a binary cross entropy, the one of the positive class."""
    input_shape: tuple[int, ...] = ()
    input_dtype: str = ""
    target_shape: tuple[int, ...] = ()
    target_dtype: str = ""
    made_by: str = ""
    """`softmax`, `sigmoid` or `log_softmax`, if one of these made the input; else empty."""
    cancels: bool = False
    """Whether it is a difference of two equal results, through both of which gradients flow."""
    limited_by: str = ""
    """What keeps the input within limits: `relu`, `tanh`, `sigmoid`, `cosine`, or `dropout` if that came last."""
    limit_factor: float = 1.0
    """What cosines were multiplied by; if that is more than 1, they count as unlimited."""
    num_unreachable: int = 0
    """How many targets are beyond those limits."""
    has_own_diagonal: bool = False
    """Whether the input is square, with its largest and always the same number on the diagonal, which is no target."""
    value: float | None = None
    """The loss; None where it was not reduced to one number."""
    input_min: float | None = None
    input_max: float | None = None
    rows_sum_to_one: bool | None = None
    rows_are_logarithms: bool | None = None
    """Whether the exponentials of each row add up to 1."""
    target_min: float | None = None
    target_max: float | None = None
    num_targets: int = 0
    num_counted: int | None = None
    """How many class indices are not the ignored one; None if the targets are none."""
    num_blank: int | None = None
    """Of a CTC loss, how many of its targets are the blank."""
    offsets: Mapping[str, float] = field(default_factory=dict)
    """Which share of the targets is the token k places later in the row that went into a model, by k."""
    padding: int | None = None
    """The id that rows of targets end with, in runs of different length, and that is nowhere else in them."""
    padding_share: float = 0.0
    """Its share of the targets that count."""
    is_bootstrapped: bool = False
    """Whether a model computed the targets in this step, without gradients, as in Q-learning and distillation."""
    never_target: int | None = None
    """The id that most rows of a language model end with, as its mask says, if it is no target anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostNumbers:
    """One call, or one tensor, in which whole numbers become others: they wrap around, or are rounded together."""

    step: int
    kind: Literal["wrapped", "rounded", "stagnant"]
    """`stagnant`: something was added in place, and the sum stayed as it was."""
    function: str
    """`mul`, `to`; `buffer` or `input` where it is not known what computed the numbers."""
    site: str
    source: str | None = None
    dtype: str = ""
    """Of the result, as torch names it."""
    given: tuple[float, ...] = ()
    """The numbers from which the first wrong one was computed."""
    exact: float | None = None
    """What they give without limits."""
    result: float | None = None
    """What they gave."""
    num_lost: int = 0
    """How many results are wrong, or equal to the one before."""
    num_elements: int = 0
    is_counter: bool = False
    """Whether the numbers grow along an axis, as places and times do."""
    is_angle: bool = False
    """Whether a sine or cosine was taken of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """One parameter of a model, or a tensor that an optimizer updates or backward reaches and no model owns."""

    name: str | None
    """None where no known model owns it."""
    site: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    optimizers: tuple[str, ...] = ()
    """The optimizers that hold it, by their names in `Structure.optimizers`."""
    has_gradient: bool = False
    """Whether it had a gradient when the first optimizer stepped."""
    is_reached: bool = False
    """Whether the first backward led to it."""
    tied_to: str | None = None
    """The first other parameter or buffer that lies in the same memory."""
    mean: float | None = None
    std: float | None = None
    absmax: float | None = None
    equal_rows: bool = False
    """Whether all its rows (of which there are several) are the same."""
    num_distinct_rows: int | None = None
    """How many different rows it has, where its first two are the same."""
    is_zero: bool = False
    attribute: str | None = None
    """The plain attribute of a model that holds it, `body.layers[2].weight`, where no model owns it."""
    is_sharded: bool = False
    """Whether it is a DTensor of which each rank holds a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFacts:
    """One module of a model."""

    site: str
    kind: str
    """Its class."""
    training: bool
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    """Plain attributes: `eps`, `momentum`, `p`, `padding_idx`, ..."""
    has_start_statistics: bool | None = None
    """Whether its running mean is still 0 and its running variance 1; None if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """One optimizer."""

    name: str
    """Its class, and `#2` for a second one of the same."""
    groups: tuple[Mapping[str, JsonValue], ...] = ()
    """Settings of each group: `lr`, `betas`, `eps`, `weight_decay`, ..., and `num_parameters`."""
    has_state: bool = False
    """Whether it had state before its first step: a resumed training."""
    recipe: str | None = None
    """The recipe it trains by, as TOML, where one was applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """What a training was made of at one step."""

    step: int
    parameters: tuple[ParameterFacts, ...] = ()
    modules: tuple[ModuleFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlacement:
    """How a parameter or gradient that is a DTensor lies on a mesh of ranks."""

    step: int
    kind: Literal["parameter", "gradient"]
    name: str
    """The parameter's."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    mesh: Mapping[str, int]
    """Names and sizes of the mesh's dimensions."""
    coordinate: tuple[int, ...]
    """Where this rank is in it."""
    placements: tuple[str, ...]
    """For each dimension of the mesh: `shard(0)`, `replicate`, `partial(sum)`, or what torch calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGroup:
    """Tensors of a training's state that belong together: the weights of a model, one kind of an optimizer's state."""

    kind: Literal["weight", "buffer", "optimizer", "copy"]
    """A `copy` is another module of the model's shapes that no optimizer trains, such as an average of its weights."""
    name: str
    """The class of the model, or of the optimizer with the key of the state: `AdamW.exp_avg`."""
    hash: str
    """Of all of them, in hex."""
    num_tensors: int
    num_zero: int = 0
    """How many of them are all zero."""
    l2: float = 0.0
    """The norm of all of them together."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """The hash of each, by its name; empty where that would take too much space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFacts:
    """What a training's state was at one moment: as it was saved, or as a step began after a save or a load."""

    step: int
    """The step that begins with it."""
    moment: Literal["saved", "began"]
    after: Literal["save", "load"] = "save"
    holds: tuple[str, ...] = ()
    """The keys of what was saved."""
    groups: tuple[StateGroup, ...] = ()
    why_no_groups: str | None = None
    """Why no tensor was hashed."""
    rates: Mapping[str, JsonValue] = field(default_factory=dict)
    """The learning rates of each optimizer."""
    updates: Mapping[str, JsonValue] = field(default_factory=dict)
    """How many steps each optimizer has counted in its state; optimizers that count none are missing."""
    schedules: Mapping[str, JsonValue] = field(default_factory=dict)
    """The `last_epoch` of each learning-rate scheduler, by its class."""
    loss_scale: float | None = None
    loss_scale_age: int | None = None
    """How many steps ago a GradScaler last changed it."""
    generators: Mapping[str, str] = field(default_factory=dict)
    """A hash of the state of each random generator: `torch`, `numpy`, `python`, `device0`."""
