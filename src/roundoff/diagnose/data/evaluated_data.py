"""Data of the evaluation or of pictures that is prepared in another way: inputs, scales of targets, masks."""

from __future__ import annotations

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import targets_of
from roundoff.diagnose.rule import Code, FaultEffect, note, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import DenseTargetProbe, EvalTrialProbe, Finding, MetricProbe, Run

_REGAINED, _MIN_GAIN = 0.6, 0.15
"""How much of the gap to training samples a change must close, and how many more choices must be right."""
_TURNED = 0.15
"""At least this part of the targets must fit better turned, and at least this part as it is."""
_BETWEEN, _MIN_EDGES, _SMOOTH = 0.12, 100, 0.7
"""At an edge of interpolated indices one pixel of three lies between its neighbours; nearest ones: 0.03."""
_TIMES_APART = 5.0
_UNSCALES = frozenset(
    {"mul", "__mul__", "__rmul__", "add", "__add__", "__radd__", "div", "__truediv__", "exp", "expm1"}
)


@rule(
    Code(
        name="eval-input-differs",
        means="The evaluation prepares its inputs in another way than the training: with other statistics, or with "
        "colours in another order. The model would be right on them otherwise.",
        fix="Use the statistics of the training set, and the same order of channels, for both.",
        leads_to=(FaultEffect.BREAKS_EVALUATION,),
    ),
    order=1406,
    checks="whether a model does better in its evaluation on inputs prepared as in training",
    needs=[needs.probe(EvalTrialProbe, missing="choices of an evaluation are about as good as those in training")],
)
def differing_inputs(run: Run) -> Finding | None:
    """Find an evaluation in which the model gets nearly as good as in training once the inputs are changed."""
    for probe in run.probes(EvalTrialProbe):
        gain, gap = probe.changed_share - probe.share, probe.train_share - probe.share
        if gain < max(_MIN_GAIN, _REGAINED * gap):
            continue
        is_color = probe.change == "channels"
        changed = "the order of the channels is reversed" if is_color else "each feature has the statistics of training"
        return warning(
            rule="eval-input-differs",
            confidence=0.93,
            step=probe.step,
            phase="eval",
            title="the evaluation prepares its inputs in another way than the training",
            why=f"{probe.share:.0%} of {probe.num_samples} choices of the evaluation are right, and "
            f"{probe.train_share:.0%} on training samples; when {changed}, {probe.changed_share:.0%} of the same "
            "choices are right",
            fix="read channels in the same order in both (RGB or BGR)"
            if is_color
            else "normalize both with the mean and standard deviation of the training set",
            evidence=({"tried": changed, "is_good": True, "share": probe.share, "changed": probe.changed_share},),
        )
    return None


@rule(
    Code(
        name="eval-target-scale",
        means="Targets of the evaluation are on another scale than those of the training, and predictions are compared "
        "with them as they are: the error says nothing about the model.",
        fix="Scale both alike, or undo the scaling of the predictions before they are compared.",
        leads_to=(FaultEffect.BREAKS_EVALUATION,),
    ),
    order=1408,
    checks="scales of targets in training and evaluation",
    needs=[needs.targets, needs.probe(MetricProbe, missing="the loop computed no error of predictions with torch")],
)
@on_first_rank
def differing_targets(run: Run, rank: int) -> Finding | None:
    """Find errors of an evaluation whose targets lie far outside of all training targets; predictions are unscaled."""
    seen = [target for batch in run.inputs(rank=rank) for target in targets_of(batch)[:1] if "float" in target.dtype]
    lows, highs = [t.min for t in seen if t.min is not None], [t.max for t in seen if t.max is not None]
    if not lows or not highs:
        return None
    low, high = min(lows), max(highs)
    width = max(high - low, 1e-12)
    for line in run.probes(MetricProbe):
        if line.kind not in ("error", "loss") or not line.num_calls or line.min is None or line.max is None:
            continue
        apart = max(line.max - high, low - line.min) > _TIMES_APART * width
        if not apart or _UNSCALES & set(line.functions):
            continue
        return warning(
            rule="eval-target-scale",
            confidence=0.9,
            step=line.step,
            rank=rank,
            phase="eval",
            source=line.source,
            title="predictions are compared with targets of another scale than in training",
            why=f"training targets range from {format_short(low)} to {format_short(high)}, those of the evaluation "
            f"from {format_short(line.min)} to {format_short(line.max)}; outputs meet them as the model returns them",
            fix="undo the scaling of the predictions before they are compared, or scale the targets of both alike",
            evidence=({"train": [low, high], "eval": [line.min, line.max]},),
        )
    return None


@rule(
    Code(
        name="targets-not-turned",
        means="A part of the inputs is flipped or turned without its targets: masks then lie beside what they mark.",
        fix="Draw the random flip once, and apply it to the picture and its mask.",
        detected="A part of the targets fits its inputs better when it is turned.",
    ),
    Code(
        name="class-indices-interpolated",
        means="Masks of class indices were resized by interpolation: between two classes there are now others that are "
        "not in the picture.",
        fix="Resize masks with the nearest neighbour: `mode='nearest'`, `InterpolationMode.NEAREST`.",
        detected="Class indices lie between those of their neighbours.",
    ),
    order=526,
    checks="whether masks lie as their pictures do, and whether class indices were interpolated",
    needs=[needs.probe(DenseTargetProbe, missing="no targets with a number per pixel were seen")],
)
def damaged_masks(run: Run) -> Finding | None:
    """Find masks of which a part must be turned to fit, or whose indices change gradually."""
    for probe in run.probes(DenseTargetProbe):
        if min(probe.turned_share, probe.kept_share) >= _TURNED:
            return warning(
                rule="targets-not-turned",
                confidence=0.9,
                step=0,
                title=f"a part of the targets fits its inputs only when it is {probe.turn}",
                why=f"targets were predicted from the pixels around their place, by a linear model: of "
                f"{probe.num_samples} samples {probe.turned_share:.0%} fit clearly better {probe.turn}, and "
                f"{probe.kept_share:.0%} as they are: inputs are turned at random, and their targets are not",
                fix="draw the random flip once, and apply it to the picture and its target",
                evidence=({"turn": probe.turn, "turned": probe.turned_share, "kept": probe.kept_share},),
            )
        is_smooth = probe.equal_share >= _SMOOTH and probe.num_edges >= _MIN_EDGES
        if is_smooth and probe.between_share >= _BETWEEN:
            return note(
                rule="class-indices-interpolated",
                confidence=0.6,
                step=0,
                title="class indices of the targets may have been interpolated",
                why=f"at {probe.between_share:.0%} of {probe.num_edges} edges between two classes the pixel in between "
                "has an index between both, another class: either the classes are ordered, or masks were resized as if "
                "indices were brightness",
                fix="resize masks with the nearest neighbour: mode='nearest'",
                evidence=({"between": probe.between_share, "edges": probe.num_edges},),
            )
    return None
