"""The rule for a first loss that is far above what guessing gives."""

from __future__ import annotations

import math

from roundoff.diagnose.layers import Layer, finding_at, first_rank, forward_ops, layers_of, root_mean_square
from roundoff.diagnose.numbers import short
from roundoff.runs import Finding, Run

_CRITERIA = ("cross_entropy", "CrossEntropyLoss")
_TIMES = 2.0
_MORE = 1.0
_LARGE_GAIN = 4.0
"""A head with torch's own start values has 0.6; one of N(0, 1) has the root of its inputs."""


def initial_losses(run: Run) -> list[Finding]:
    """Find a cross entropy that starts far above ln C because of the head's weights."""
    facts = next((f for f in run.inputs(rank=first_rank(run)) if f.step == 0 and f.criterion in _CRITERIA), None)
    if facts is None or facts.num_classes is None or facts.num_classes < 2:
        return []
    ops = forward_ops(run)
    losses = [op.outputs[0] for op in ops if op.bare in ("nll_loss_forward", "nll_loss2d_forward")]
    layers = layers_of(run, ops)
    if not losses or not layers or facts.criterion_settings.get("reduction", "mean") != "mean":
        return []
    guess, loss, head = math.log(facts.num_classes), losses[-1].mean, layers[-1]
    gain = _gain(head)
    if loss < _TIMES * guess + _MORE or head.weight.tied_to is not None or gain is None or gain < _LARGE_GAIN:
        return []
    return [
        finding_at(
            head,
            "initial-loss",
            confidence=0.9,
            title=f"the first loss is {short(loss)}, where guessing gives {short(guess)}",
            why=f"guessing among {facts.num_classes} classes costs ln {facts.num_classes} = {short(guess)}; the logits "
            f"of {head.site} are of size {short(root_mean_square(head.result))}, because its weights, of size "
            f"{short(head.weight.std or 0.0)}, multiply what comes in by {short(gain)}",
            fix=f"start {head.weight.name} smaller: a standard deviation of 1 / sqrt(inputs) or below, or 0",
            evidence=({"loss": loss, "ln_classes": guess, "gain": gain},),
        )
    ]


def _gain(head: Layer) -> float | None:
    """Return by how much the layer's weights make a random input of size 1 larger."""
    if head.weight.std is None:
        return None
    return head.weight.std * math.sqrt(math.prod(head.weight.shape[1:]))
