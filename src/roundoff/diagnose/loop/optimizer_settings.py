"""Settings of an optimizer that defeat it: swapped ones, a weight decay or an eps that outweighs the gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from roundoff.diagnose import needs
from roundoff.diagnose.loop.learning_rate import movements
from roundoff.diagnose.rule import Code, FaultEffect, error, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, JsonValue, Run
from roundoff.words import plural

_NUM_FIRST = 20
"""Gradients are compared in the first steps only: later a training may have learned all there is."""
_MIN_STEPS = 3
_CLEARLY_MORE = 0.05
_SMALL_MOMENTUM, _LARGE_RATE = 0.1, 0.5
_FORGETS = 0.01
"""Weight decay times learning rate from which on the weights forget what they learned within a hundred steps."""
_SHRUNK = 0.5
_ADAMW_DECAY, _MUCH_DECAY = 0.01, 0.5
"""From this weight decay on a value is one for AdamW; and the decay term relative to the gradient that matters."""
_EPS_ABOVE, _SMALL_STEP = 5.0, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParameterGroup:
    """One parameter group of an optimizer."""

    optimizer: str
    settings: Mapping[str, JsonValue]

    def number(self, name: str) -> float:
        """Return a setting, 0 without it."""
        value = self.settings.get(name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0

    @property
    def adds_decay_to_gradients(self) -> bool:
        """Whether it is an Adam that adds the weight decay to the gradient before it divides."""
        return self.settings.get("decoupled_weight_decay") is False


def _groups(run: Run, rank: int) -> Iterator[_ParameterGroup]:
    looks = run.structures(rank=rank)
    for optimizer in looks[-1].optimizers if looks else ():
        for settings in optimizer.groups:
            yield _ParameterGroup(optimizer=optimizer.name, settings=settings)


@rule(
    Code(
        name="settings-swapped",
        means="Two settings of the optimizer stand in each other's place: the betas of Adam, or learning rate and "
        "momentum.",
        fix="Name them where they are given: `betas=(0.9, 0.999)`, `lr=0.01, momentum=0.9`.",
        detected="Adam's first beta is larger than its second, or the momentum is tiny and the learning rate as large "
        "as a momentum.",
        leads_to=(FaultEffect.BLOWS_UP,),
    ),
    Code(
        name="weight-decay-too-strong",
        means="Weight decay takes away in a few dozen steps what the weights have learned.",
        fix="Use a smaller weight decay: 0.01 to 0.1 with AdamW, 1e-4 to 5e-4 with SGD.",
        detected="The weight decay times the learning rate is 1 % or more of the weights in every step, and they have "
        "shrunk to less than half.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
        follows_from=("norm-weight-decay",),
    ),
    Code(
        name="eps-above-gradients",
        means="Adam's eps is much larger than the gradients, so its steps are far smaller than the learning rate says.",
        fix="Use a smaller eps, or scale the loss up: gradients should be larger than eps.",
        detected="In the first steps eps is several times the size of a gradient, and weights move by a small part of "
        "the learning rate.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    Code(
        name="decay-in-adam",
        means="Adam adds the weight decay to the gradient and then divides by the gradient's size. With a value that "
        "is meant for AdamW, most of the step is decay, and it hardly depends on `weight_decay`.",
        fix="Use `torch.optim.AdamW`, which subtracts the decay from the weights, or a far smaller value.",
        detected="In the first steps the decay term is at least half as large as the gradient.",
    ),
    order=676,
    checks="settings of optimizers",
    needs=[needs.structure, needs.optimizer],
)
@on_first_rank
def unfit_settings(run: Run, rank: int) -> list[Finding]:
    """Compare settings with each other, and with the weights, gradients and updates of the first steps."""
    groups = list(_groups(run, rank))
    found: list[Finding | None] = [_find_swapped(group, rank) for group in groups]
    if len({group.optimizer for group in groups}) == 1:
        found += [_find_forgetting(run, rank, groups[0]), _find_large_eps(run, rank, groups[0])]
        found += [_find_coupled_decay(run, rank, group) for group in groups[:1]]
    return [finding for finding in found if finding is not None][:1]


def _find_swapped(group: _ParameterGroup, rank: int) -> Finding | None:
    betas, momentum, rate = group.settings.get("betas"), group.number("momentum"), _rate(group)
    if isinstance(betas, (list, tuple)) and len(betas) == 2:
        first, second = (float(beta) if isinstance(beta, (int, float)) else 0.0 for beta in betas)
        if first > second + _CLEARLY_MORE:
            return _swapped_finding(
                group,
                rank,
                what="the betas",
                why=f"{group.optimizer} has betas=({first:g}, {second:g}): it averages gradients over about "
                f"{1 / max(1 - first, 1e-9):.0f} steps, and their squares, which should be steadier, over "
                f"{1 / max(1 - second, 1e-9):.0f}",
                fix=f"betas=({second:g}, {first:g})",
            )
    if 0 < momentum < _SMALL_MOMENTUM and rate >= _LARGE_RATE:
        return _swapped_finding(
            group,
            rank,
            what="learning rate and momentum",
            why=f"{group.optimizer} has lr={rate:g} and momentum={momentum:g}: a momentum this small does nothing, and "
            "the learning rate has the size of a momentum",
            fix=f"lr={momentum:g}, momentum={rate:g}",
        )
    return None


def _swapped_finding(group: _ParameterGroup, rank: int, *, what: str, why: str, fix: str) -> Finding:
    return warning(
        rule="settings-swapped",
        confidence=0.9,
        step=0,
        rank=rank,
        phase="optimizer",
        title=f"{what} of {group.optimizer} are swapped",
        why=why,
        fix=fix,
        evidence=({"settings": {**group.settings}},),
    )


def _rate(group: _ParameterGroup) -> float:
    return group.number("initial_lr") or group.number("lr")


def _find_forgetting(run: Run, rank: int, group: _ParameterGroup) -> Finding | None:
    decay, rate = group.number("weight_decay"), _rate(group)
    share = rate * decay / (1 - min(group.number("momentum"), 0.99))
    moved = movements(run, rank)
    if group.adds_decay_to_gradients or share < _FORGETS or len(moved) < _MIN_STEPS:
        return None
    first, last = moved[0].weights, moved[-1].weights
    if last > _SHRUNK * first:
        return None
    return error(
        rule="weight-decay-too-strong",
        confidence=0.9,
        step=moved[0].step,
        rank=rank,
        phase="optimizer",
        title="weight decay outweighs what is learned",
        why=f"weight decay {decay:g} times the learning rate {format_short(rate)} takes {share:.1%} off every weight "
        f"in each step; the norm of all weights fell from {format_short(first)} to {format_short(last)} in "
        f"{plural(moved[-1].step - moved[0].step, 'step')}",
        fix=f"use a smaller weight_decay than {decay:g}: 0.01 to 0.1 with AdamW, 1e-4 to 5e-4 with SGD",
        evidence=({"weight_decay": decay, "lr": rate, "first": first, "last": last},),
    )


def _find_coupled_decay(run: Run, rank: int, group: _ParameterGroup) -> Finding | None:
    decay = group.number("weight_decay")
    if not group.adds_decay_to_gradients or decay < _ADAMW_DECAY:
        return None
    measured = [one for one in movements(run, rank)[:_NUM_FIRST] if one.gradient > 0]
    if len(measured) < _MIN_STEPS:
        return None
    share = median(decay * one.weights / one.gradient for one in measured)
    if share < _MUCH_DECAY:
        return None
    return warning(
        rule="decay-in-adam",
        confidence=0.85,
        step=measured[0].step,
        rank=rank,
        phase="optimizer",
        title=f"{group.optimizer} adds a large weight decay to the gradients",
        why=f"weight_decay={decay:g} times the weights is {format_short(share)} times as large as the gradient (the "
        f"median of the first {plural(len(measured), 'measured step')}); {group.optimizer} adds it to the gradient and "
        "divides the sum by its size, so weights with small gradients decay by the whole learning rate in every step",
        fix="use torch.optim.AdamW with the same settings, which keeps the decay apart from the gradients",
        evidence=({"weight_decay": decay, "share": share},),
    )


def _find_large_eps(run: Run, rank: int, group: _ParameterGroup) -> Finding | None:
    eps, rate = group.number("eps"), _rate(group)
    if not eps or not rate or group.settings.get("betas") is None or group.number("weight_decay"):
        return None
    sizes: list[tuple[float, float]] = []
    table = run.parameters(rank=rank)
    rows = table.to_list() if table.num_rows else []
    for step in sorted({row["step"] for row in rows})[:_NUM_FIRST]:
        own = [
            row for row in rows if row["step"] == step and row["grad_l2"] is not None and row["update_l2"] is not None
        ]
        having = [row for row in own if math.isfinite(row["grad_l2"]) and row["grad_l2"] > 0]
        count = sum(row["num_elements"] * (1 - (row["grad_zero_share"] or 0.0)) for row in having)
        if count:
            gradient, update = (
                math.sqrt(math.fsum(row[name] ** 2 for row in having) / count) for name in ("grad_l2", "update_l2")
            )
            sizes.append((gradient, update / rate))
    if len(sizes) < _MIN_STEPS:
        return None
    gradient, share = median(size for size, _ in sizes), median(share for _, share in sizes)
    if eps < _EPS_ABOVE * gradient or share > _SMALL_STEP:
        return None
    return error(
        rule="eps-above-gradients",
        confidence=0.9,
        step=0,
        rank=rank,
        phase="optimizer",
        title=f"the eps of {group.optimizer} is larger than the gradients",
        why=f"eps is {format_short(eps)}, and a gradient has a typical size of {format_short(gradient)} (root mean "
        f"square of the first {plural(len(sizes), 'measured step')}); the weights move by {format_short(share)} of the "
        f"learning rate in a step, where Adam moves them by about all of it",
        fix=f"set eps far below {format_short(gradient)}, or multiply the loss by a factor that brings gradients far "
        "above eps",
        evidence=({"eps": eps, "gradient": gradient, "share": share},),
    )
