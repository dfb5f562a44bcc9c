"""Labels that teach nothing: all the same, copied from the input, or unrelated to it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean, median

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import (
    ASKS_YES_OR_NO,
    CLASSIFIES,
    model_inputs,
    site_of,
    targets_of,
    training_epochs,
)
from roundoff.diagnose.rule import Code, FaultEffect, error, note, on_first_rank, rule, warning
from roundoff.diagnose.step_flow import PRODUCTS, Flow
from roundoff.diagnose.wording import format_short
from roundoff.runs import BatchFacts, Finding, OverfitProbe, ParameterFacts, PredictorProbe, Run, TensorFacts
from roundoff.runs.records.event import ops_of
from roundoff.words import join_names, plural

_MIN_TRAINED_STEPS = 100
_NEAR_CHANCE = 0.93
"""A loss that stays above this fraction of the chance level has learned nothing from the dataset."""
_OVERFITTED = 0.9
"""A loss on one batch that falls below this fraction of chance shows that model and optimizer can learn."""
_TIMES_LESS = 3.0
"""The training must have learned this many times less than on one batch, in many more steps."""
_TIMES_LONGER = 3
_NUM_FIRST = 10
_STAYED, _NEAR_BY_HAND = 0.9, 1.1
"""A loss by an unknown criterion has stayed if it ends above this part of the first ones, and is at chance if it is at
most this many times as high."""
_MIN_PER_CLASS = 10
_SQUARES = ("mse_loss", "MSELoss")
_PREDICTED = 0.05
"""A small model that explains this much more of the targets than by chance shows that they follow from the inputs."""
_DEFAULT_SPREAD = 0.1
_FROZEN_SHARE = 0.05
"""A model of which less is frozen is not hindered by that."""


def _overfit_probe(run: Run) -> str | None:
    """Look for the overfit probe, which only a loss at chance level calls for."""
    chance = _chance(run)
    is_at_chance = chance is not None and _is_at_chance(_finite_losses(run), chance)
    return needs.probe(OverfitProbe)(run) if is_at_chance else None


@rule(
    Code(
        name="frozen-untrained",
        means="The loss stays at chance level, and layers that do not train have torch's random start values: no "
        "training has ever changed them, and no weights were loaded into them.",
        detected="The start values of frozen weights fill exactly the range that torch draws from.",
        fix="Load trained weights into these layers, after the last change to the model, or let them train.",
    ),
    Code(
        name="labels-independent",
        means="The loss stays at chance level, although the same model and optimizer can memorize a single batch: "
        "labels and inputs do not belong together.",
        detected="One batch can be learned, the dataset cannot, and a small model of roundoff's own does not predict "
        "the labels of kept samples either.",
        fix="Look at some samples with their labels: files sorted differently, inputs shuffled without their labels, "
        "an index off by one.",
        follows_from=(
            "axes-confused",
            "batch-mixing",
            "classes-in-order",
            "graph-cut",
            "labels-misaligned",
            "layer-made-in-forward",
            "order-ignored",
            "units-without-gradient",
            "update-below-ulp",
        ),
    ),
    order=1510,
    checks="labels unrelated to the inputs",
    needs=[
        needs.targets,
        needs.losses(_MIN_TRAINED_STEPS),
        needs.some(lambda run: _chance(run) is not None, "the chance level of this loss is unknown"),
        _overfit_probe,
    ],
)
def independent_labels(run: Run) -> Finding | None:
    """Find a training that stays at chance level, although the same optimizer can memorize a single batch.

    If a small model predicts labels that it was not given from the inputs, they do belong together: then it is
    something else. Frozen layers with random start values are such a cause.
    """
    chance, losses = _chance(run), _finite_losses(run)
    if chance is None or len(losses) < _MIN_TRAINED_STEPS or not _is_at_chance(losses, chance):
        return None
    late, predictor = _late_loss(losses), _predictor(run)
    untrained = _untrained_and_frozen(run)
    if untrained:
        return _frozen_finding(untrained, run, chance=chance, late=late, num_steps=len(losses))
    if predictor is not None:
        return None
    for probe in run.probes(OverfitProbe):
        tried = [loss for loss in probe.losses if loss is not None]
        if _can_learn(tried, chance=chance, late=late) and len(losses) >= _TIMES_LONGER * len(tried):
            frozen, doubt = _frozen_text(run), ""
            if frozen:
                doubt = (
                    f". Or it is the frozen layers: {frozen}; if they were never trained, they may pass on too little"
                )
            return error(
                rule="labels-independent",
                confidence=0.5 if frozen else 0.8,
                step=probe.step,
                phase="forward",
                title="the labels are unrelated to the inputs" + (", or frozen layers lose them" if frozen else ""),
                why=f"after {len(losses)} steps the loss is {format_short(late)}, and knowing only how often each "
                f"label occurs gives {format_short(chance)}; on a single batch it falls from "
                f"{format_short(tried[0])} to {format_short(min(tried))} within {len(tried)} steps, so the model and "
                f"the optimizer can learn{_describe_predictor(run)}{doubt}",
                fix=("load trained weights into the frozen layers, or let them train; " if frozen else "")
                + "check some samples with their labels: two files sorted differently, inputs shuffled without their "
                "labels, an index off by one",
                evidence=({"chance": chance, "loss": late, "overfit": [*tried]},),
            )
    return None


def _predictor(run: Run) -> PredictorProbe | None:
    """Return the trial of a small model on kept samples, if it predicts labels that it was not given."""
    probes = run.probes(PredictorProbe)
    is_clear = probes and probes[0].explained > _PREDICTED + max(probes[0].explained_by_chance, 0.0)
    return probes[0] if is_clear else None


def _describe_predictor(run: Run) -> str:
    """Say what came of trying to predict the targets with a small model; empty if that was not tried."""
    probes = run.probes(PredictorProbe)
    if not probes:
        return ""
    shown = f"Tried: a small model on {probes[0].num_samples} kept samples"
    if _predictor(run) is None:
        return f". {shown} does not predict the others' targets either"
    return (
        f". {shown} explains {probes[0].explained:.0%} of the others' targets (shuffled: "
        f"{max(probes[0].explained_by_chance, 0.0):.0%}): they follow from the inputs, and this model does not learn it"
    )


def _untrained_and_frozen(run: Run) -> list[ParameterFacts]:
    """Return the frozen weights with the start values that torch draws by default; none if they are a small part."""
    structures = run.structures(rank=run.ranks[0]) if run.ranks else ()
    parameters = structures[0].parameters if structures else ()
    frozen = [p for p in parameters if not p.requires_grad and _has_default_start(p)]
    total = sum(math.prod(p.shape) for p in parameters)
    return frozen if sum(math.prod(p.shape) for p in frozen) >= _FROZEN_SHARE * total else []


def _has_default_start(parameter: ParameterFacts) -> bool:
    """Say whether a weight of a linear layer or convolution fills the interval of torch's default, and no more."""
    if len(parameter.shape) < 2 or not parameter.std or parameter.absmax is None:
        return False
    bound = 1 / math.sqrt(math.prod(parameter.shape[1:]))
    spread = max(_DEFAULT_SPREAD, 2 / math.sqrt(math.prod(parameter.shape)))  # that of few numbers varies
    is_uniform = math.isclose(parameter.std, bound / math.sqrt(3), rel_tol=spread)
    return is_uniform and (1 - spread) * bound < parameter.absmax <= bound * (1 + 1e-6)


def _frozen_finding(
    untrained: Sequence[ParameterFacts], run: Run, *, chance: float, late: float, num_steps: int
) -> Finding:
    names = [str(p.name) for p in untrained]
    return error(
        rule="frozen-untrained",
        confidence=0.9 if _predictor(run) else 0.7,
        step=0,
        site=untrained[0].site,
        parameter=names[0],
        title="frozen layers still have random start values",
        why=f"{join_names(names)} do not train, and their values fill exactly the range that torch draws start values "
        f"from: nothing was loaded into them. After {num_steps} steps the loss is {format_short(late)}, and knowing "
        f"only how often each label occurs gives {format_short(chance)}{_describe_predictor(run)}",
        fix="load trained weights into them, and check that loading has found their names, or let them train: "
        "parameter.requires_grad_(True)",
        evidence=({"frozen": [*names], "chance": chance, "loss": late},),
    )


def _frozen_text(run: Run) -> str | None:
    """Say how many parameters are frozen, where it is a good part of the model; otherwise return None."""
    structures = run.structures(rank=run.ranks[0]) if run.ranks else ()
    parameters = structures[-1].parameters if structures else ()
    sizes = {is_trained: 0 for is_trained in (True, False)}
    for parameter in parameters:
        sizes[parameter.requires_grad] += math.prod(parameter.shape)
    if sizes[False] < _FROZEN_SHARE * sum(sizes.values()) or not sizes[False]:
        return None
    num_frozen = sum(not parameter.requires_grad for parameter in parameters)
    return f"{num_frozen} of {plural(len(parameters), 'parameter')} do not train"


@rule(
    Code(
        name="stays-at-guessing",
        means="The loss stays at what guessing costs: the model knows how often each answer occurs, and nothing about "
        "the single sample.",
        fix="Try whether it can memorize one batch. If it can, look at the data; if not, at the model and the loop.",
        follows_from=(FaultEffect.ANY,),
    ),
    order=1540,
    checks="a loss that stays at what guessing costs",
    needs=[
        needs.losses(_MIN_TRAINED_STEPS),
        needs.some(lambda run: _chance(run) is not None or _by_hand(run), "the chance level of this loss is unknown"),
    ],
)
def guessing(run: Run) -> Finding | None:
    """Find a loss that ends within a few percent of what knowing only the frequencies of the targets gives.

    A criterion that is written by hand is not known: then the loss must have stayed near where it began, at the entropy
    or the variance of something that the step read and no model was given.
    """
    losses = _finite_losses(run)
    if len(losses) < _MIN_TRAINED_STEPS:
        return None
    chance, late = _chance(run), _late_loss(losses)
    if chance is not None:
        if not _is_at_chance(losses, chance):
            return None
        what = f"knowing only how often each target occurs gives {format_short(chance)}"
    else:
        levels = _by_hand(run) if late > _STAYED * median(losses[:_NUM_FIRST]) else []
        near = [(text, level) for text, level in levels if _NEAR_CHANCE * level < late < _NEAR_BY_HAND * level]
        if not near:
            return None
        chance, what = near[0][1], f"{near[0][0]} is {format_short(near[0][1])}, which is what guessing costs"
    return note(
        rule="stays-at-guessing",
        confidence=0.6,
        step=max(metric.step for metric in run.metrics(rank=0)),
        phase="forward",
        title="the loss stays at what guessing costs",
        why=f"after {len(losses)} steps it is {format_short(late)}; {what}{_describe_overfit(run, chance)}"
        f"{_describe_predictor(run)}",
        fix="look at what lies between the inputs and the loss: saturated or frozen layers, a graph that is cut, which "
        "position or row of the output is used, the learning rate"
        if _predictor(run)
        else "try whether one batch can be memorized: if so, look at samples with their labels; if not, at the "
        "learning rate, and at what lies between the inputs and the loss",
        evidence=({"chance": chance, "loss": late},),
    )


def _describe_overfit(run: Run, chance: float) -> str:
    """Say what came of trying to memorize one batch; empty if that was not tried."""
    for probe in run.probes(OverfitProbe):
        tried = [loss for loss in probe.losses if loss is not None]
        if len(tried) > 1:
            can_learn = min(tried) < _OVERFITTED * min(chance, tried[0])
            result = "one batch can be learned" if can_learn else "not even one batch is learned"
            return (
                f". Tried: {plural(len(tried), 'step')} on one batch bring its loss from {format_short(tried[0])} to "
                f"{format_short(min(tried))}: {result}"
            )
    return ""


def _by_hand(run: Run) -> list[tuple[str, float]]:
    """Return what guessing may cost, where the criterion is unknown: by tensors that only the loop's functions read."""
    batches = run.inputs(rank=0)
    if any(batch.criterion is not None for batch in batches) or run.criteria(rank=0):
        return []
    sites = {module.site for look in run.structures(rank=0) for module in look.modules}
    counts: dict[str, Counter[str]] = {}
    spreads: dict[str, list[float]] = {}
    for batch in batches:
        for tensor in batch.tensors:
            if site_of(tensor.place) in sites or not tensor.std:
                continue
            if tensor.counts:
                counts.setdefault(tensor.place, Counter()).update(tensor.counts)
            elif "float" in tensor.dtype:
                spreads.setdefault(tensor.place, []).append(tensor.std**2)
    found = [("the variance of the targets", mean(values)) for values in spreads.values()]
    for count in counts.values():
        if 1 < len(count) <= count.total() / _MIN_PER_CLASS:
            shares = [num / count.total() for num in count.values()]
            entropy = -sum(share * math.log(share) for share in shares)
            found.append((f"the entropy of the counts of {len(count)} labels", entropy))
    return found


def _finite_losses(run: Run) -> list[float]:
    return [metric.loss for metric in run.metrics(rank=0) if metric.loss is not None and math.isfinite(metric.loss)]


def _late_loss(losses: list[float]) -> float:
    return median(losses[len(losses) // 2 :])


def _is_at_chance(losses: list[float], chance: float) -> bool:
    return _NEAR_CHANCE * chance < _late_loss(losses) < 1.5 * chance


def _chance(run: Run) -> float | None:
    """Return the loss of a model that only knows how often each label occurs; None if that is unknown."""
    counts: Counter[str] = Counter()
    variances: list[float] = []
    inside = next(iter(run.criteria(rank=0)), None)  # the criterion of a model that computes its own loss
    for batch in [batch for batch in run.inputs(rank=0) if targets_of(batch)]:
        settings, targets, criterion = batch.criterion_settings, targets_of(batch), batch.criterion
        if criterion is None and inside is not None:
            settings, criterion = inside.settings, inside.function
        if settings.get("reduction", "mean") != "mean" or settings.get("label_smoothing") or len(targets) != 1:
            return None
        if criterion in CLASSIFIES:
            ignored = {"-100", str(settings.get("ignore_index"))}
            counts.update({key: num for key, num in targets[0].counts.items() if key not in ignored})
        elif criterion in ASKS_YES_OR_NO and _is_yes_or_no(targets[0]):
            num_yes = round((targets[0].mean or 0.0) * targets[0].shape[0])
            counts.update({"1": num_yes, "0": targets[0].shape[0] - num_yes})
        elif criterion in _SQUARES and targets[0].std:
            variances.append(targets[0].std ** 2)
        else:
            return None
    if variances:
        return None if counts else mean(variances)
    shares = [num / counts.total() for num in counts.values() if num]
    return -sum(share * math.log(share) for share in shares) if len(shares) > 1 else None


def _is_yes_or_no(target: TensorFacts) -> bool:
    """Say whether there is one answer per sample, 0 or 1: only those have this standard deviation."""
    if target.mean is None or target.std is None or math.prod(target.shape) != target.shape[0]:
        return False
    return math.isclose(target.std**2, target.mean * (1 - target.mean), rel_tol=1e-6, abs_tol=1e-9)


def _can_learn(tried: list[float], *, chance: float, late: float) -> bool:
    if len(tried) < 2 or min(tried) >= _OVERFITTED * min(chance, tried[0]):
        return False
    return chance - min(tried) > _TIMES_LESS * (chance - late)


_LEARN = PRODUCTS | {"embedding", "_embedding_bag", "bmm", "baddbmm", "mkldnn_rnn_layer", "lstm", "gru"}
_CRITERIA = frozenset({"_log_softmax", "nll_loss_forward", "nll_loss2d_forward"})
_KEEP_THE_ORDER = frozenset({"div", "mul", "_to_copy", "clone", "copy"})
_JOIN = frozenset({"cat", "stack"})


def meets_weights(run: Run, rank: int, given: TensorFacts) -> bool:
    """Say whether a layer reads an input or something computed from it; True also if it cannot be followed.

    Labels that bypass all layers and meet the scores right before the criterion, such as those of a margin, do not leak
    the answer.
    """
    flow = _flow(run, rank)
    number = int(given.hash, 16) if given.hash else None
    reached = [event for op in flow.ops if op.first.op == "input" for event in op.outputs if event.hash == number]
    seen: set[tuple[int, int]] = set()
    meets_criterion = False
    while reached:
        event = reached.pop()
        if (event.hash, event.num_elements) in seen:
            continue
        seen.add((event.hash, event.num_elements))
        for op in flow.readers_of(event):
            if op.bare in _LEARN:
                return True
            meets_criterion = meets_criterion or (op.bare in _CRITERIA and "float" in event.dtype)
            reached.extend(op.outputs)
    return not meets_criterion


def are_places_in_a_row(run: Run, rank: int) -> bool:
    """Say whether the scores of a criterion were concatenated, so that a class is a position in a row.

    Then the right class may always be the first, as in contrastive losses.
    """
    flow = _flow(run, rank)
    for op in flow.ops:
        if op.bare == "_log_softmax" and op.inputs:
            maker = flow.maker_of(op.inputs[0])
            while maker is not None and maker.bare in _KEEP_THE_ORDER and maker.inputs:
                maker = flow.maker_of(maker.inputs[0])
            if maker is not None and maker.bare in _JOIN:
                return True
    return False


def _flow(run: Run, rank: int) -> Flow:
    return Flow(ops_of(run.iter_events(step=0, rank=rank, phase="forward")))


_MIN_LABELLED_STEPS = 10
"""Fewer steps with one class may be the start of sorted data, if the length of an epoch is unknown."""
_NUM_BEFORE, _OUTLIER = 10, 4.0
"""A loss this many times the median of those before it saw something new."""
_MIN_EQUAL = 3
_LEARNED = 0.2
"""A loss that falls below this fraction of the first shows that the model found the copy."""


@rule(
    Code(
        name="single-class",
        means="All labels of the dataset are the same.",
        fix="Check where labels come from: a constant column, a filter, a file name parsed incorrectly.",
    ),
    order=520,
    checks="labels that are all the same",
    needs=[
        needs.inputs,
        needs.targets,
        needs.some(
            lambda run: any(_label_counts([b for b in run.inputs(rank=rank) if targets_of(b)]) for rank in run.ranks),
            "the targets are not class labels",
        ),
    ],
)
@on_first_rank
def single_classes(run: Run, rank: int) -> Finding | None:
    """Find a training whose labels are all the same, in the whole dataset and not only in one batch."""
    batches = [batch for batch in run.inputs(rank=rank) if targets_of(batch)]
    counts = _label_counts(batches)
    if len(counts) != 1 or not model_inputs(run, rank) or are_places_in_a_row(run, rank):
        return None  # several classes, no data, or the index of the right choice in a row
    if _covers_the_data(run, rank, batches, next(iter(counts))) and not _is_surprised(run, rank, batches):
        ((label, num),) = counts.items()
        classes = batches[0].num_classes
        of = f", although the model distinguishes {classes} classes" if classes is not None and classes > 1 else ""
        return error(
            rule="single-class",
            confidence=0.9,
            step=batches[0].step,
            rank=rank,
            phase="forward",
            title="all labels are the same",
            why=f"all {num} labels of the {plural(len(batches), 'observed step')} are {format_short(label)}{of}: "
            "their entropy is 0, and there is nothing to learn from them",
            fix="check where labels come from: a constant column, a filter that leaves one class, a file name parsed "
            "incorrectly, a loop variable that does not change",
            evidence=({"label": label, "num_labels": num, "num_steps": len(batches)},),
        )
    return None


@rule(
    Code(
        name="label-leak",
        means="The target is an input of the model, so the model learns to copy. Reconstruction and next-token "
        "prediction are not reported.",
        fix="Remove the column from the inputs, or shift the target.",
    ),
    order=530,
    checks="targets that are also inputs",
    needs=[needs.inputs, needs.targets],
)
@on_first_rank
def leaking_labels(run: Run, rank: int) -> Finding | None:
    """Find targets that are also an input of the model; silent if the whole sample is reconstructed."""
    pairs = [pair for batch in run.inputs(rank=rank) if (pair := _equal_pair(batch)) is not None]
    batches = [batch for batch in run.inputs(rank=rank) if targets_of(batch)]
    if len(pairs) < _MIN_EQUAL or len(pairs) < len(batches):
        return None
    given, target = pairs[0]
    if not meets_weights(run, rank, given):
        return None
    is_whole = math.prod(target.shape) > given.shape[0]
    if not is_whole or ("int" in target.dtype and _was_learned(run, rank)):
        step, num = batches[0].step, len(pairs)
        if is_whole:
            why = f"in all {plural(num, 'observed step')} they hold the same ids: the model learns to copy"
            fix = "shift them: predict ids[:, 1:] from ids[:, :-1]"
        else:
            why = f"in all {plural(num, 'observed step')} they hold the same values: the model sees the answer"
            fix = "remove the target from the inputs of the model"
        return warning(
            rule="label-leak",
            confidence=0.8 if is_whole else 0.9,
            step=step,
            rank=rank,
            phase="forward",
            site=site_of(given.place),
            title=f"the target is the input {given.place}",
            why=why,
            fix=fix,
            evidence=({"input": given.place, "hash": given.hash, "shape": list(target.shape)},),
        )
    return None


def _label_counts(batches: list[BatchFacts]) -> Mapping[float, int]:
    """Return how often each label occurs, without ignored ones; empty if targets are not class labels."""
    counts: Counter[float] = Counter()
    for batch in batches:
        ignored = {-100.0, batch.criterion_settings.get("ignore_index")}
        for target in targets_of(batch):
            if "int" in target.dtype and (batch.criterion in CLASSIFIES or batch.criterion is None) and target.counts:
                counts.update({float(key): num for key, num in target.counts.items() if float(key) not in ignored})
            elif batch.criterion in ASKS_YES_OR_NO and target.min is not None:
                num = math.prod(target.shape)
                counts.update({target.min: num} if target.min == target.max else {0.0: num, 1.0: num})
            else:
                return {}
    return counts


def _covers_the_data(run: Run, rank: int, batches: list[BatchFacts], label: float) -> bool:
    """Say whether the observed batches represent the whole dataset, and not only the start of sorted data."""
    epochs = training_epochs(run, rank)
    if not epochs:
        return len(batches) >= _MIN_LABELLED_STEPS
    detail = epochs[0].detail
    if any(not array.std and array.mean == label for array in detail.content or ()):
        return True
    seen = sum(epochs[0].first_step <= batch.step < epochs[0].end_step for batch in batches)
    if detail.sampler != "SequentialSampler" and seen >= _MIN_LABELLED_STEPS:
        return True
    return 2 * seen > (detail.num_batches or 2 * seen)


def _is_surprised(run: Run, rank: int, batches: list[BatchFacts]) -> bool:
    """Say whether a later loss stands out: then another, rare class occurred."""
    losses = [m.loss for m in run.metrics(rank=rank) if m.loss is not None and m.step > batches[-1].step]
    windows = [(losses[place - _NUM_BEFORE : place], losses[place]) for place in range(_NUM_BEFORE, len(losses))]
    return any(loss > _OUTLIER * median(before) for before, loss in windows)


def _equal_pair(batch: BatchFacts) -> tuple[TensorFacts, TensorFacts] | None:
    """Return a model input and a target that hold the same values."""
    inputs = [tensor for tensor in batch.tensors if not tensor.is_target and len(tensor.shape) and tensor.std]
    for target in batch.targets:
        for given in inputs:
            if _is_to_a_model(given) and _is_same(given, target):
                return given, target
    return None


def _is_to_a_model(tensor: TensorFacts) -> bool:
    return site_of(tensor.place).endswith((">", ":"))


def _is_same(one: TensorFacts, other: TensorFacts) -> bool:
    """Say whether two tensors hold the same values, whatever their shape and dtype."""
    if math.prod(one.shape) != math.prod(other.shape):
        return False
    if one.dtype == other.dtype:
        return one.hash == other.hash
    return (one.min, one.max, one.mean, one.std) == (other.min, other.max, other.mean, other.std)


def _was_learned(run: Run, rank: int) -> bool:
    losses = [metric.loss for metric in run.metrics(rank=rank) if metric.loss is not None]
    return len(losses) > 1 and min(losses[len(losses) // 2 :]) < _LEARNED * losses[0]
