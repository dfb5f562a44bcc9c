"""Whose optimizer state a tensor is, and which: read from its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SLOTS = {
    **dict.fromkeys(("momentum_buffer", "moments", "accum", "velocity", "momentum"), "momentum_buffer"),
    **dict.fromkeys(("exp_avg", "moment1", "adam_m"), "exp_avg"),
    **dict.fromkeys(("exp_avg_sq", "moment2", "adam_v"), "exp_avg_sq"),
    **dict.fromkeys(("max_exp_avg_sq", "moment2_max", "vhat"), "max_exp_avg_sq"),
    **dict.fromkeys(("square_avg", "mean_square"), "square_avg"),
    "step": "step",
    "beta1_pow_acc": "beta1_power",
    "beta2_pow_acc": "beta2_power",
}
"""What the frameworks call an optimizer's state of one parameter, and what PyTorch calls it."""

_OF_PADDLE = re.compile(rf"(?P<owner>.+)_(?P<slot>{'|'.join(SLOTS)})_\d+")
_BEFORE_THE_OWNER = frozenset({"optimizer", "optim", "optimizer_state_dict", "optimizer_state", "opt", "state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerName:
    """Which state of which parameter: `exp_avg` of `fc.weight`."""

    slot: str
    owner: str


def read_optimizer_name(name: str, *, parameters: Sequence[str]) -> OptimizerName | None:
    """Tell slot and owner from a name, or None; `parameters` are those of its checkpoint, in the order of the file.

    PyTorch numbers the owners in the order of its parameters, and the others write their names out.

    >>> read_optimizer_name("moments.fc.weight", parameters=[])
    OptimizerName(slot='momentum_buffer', owner='fc.weight')
    >>> read_optimizer_name("optimizer.state.1.exp_avg", parameters=["fc.weight", "fc.bias"])
    OptimizerName(slot='exp_avg', owner='fc.bias')
    >>> read_optimizer_name("linear_0.w_0_moment1_0", parameters=[])
    OptimizerName(slot='exp_avg', owner='linear_0.w_0')
    """
    if of_paddle := _OF_PADDLE.fullmatch(name):
        return OptimizerName(slot=SLOTS[of_paddle["slot"]], owner=of_paddle["owner"])
    first, _, rest = name.partition(".")
    if first in SLOTS and rest:
        return OptimizerName(slot=SLOTS[first], owner=rest)
    words = name.split(".")
    if words[-1] not in SLOTS:
        return None
    while len(words) > 2 and words[0] in _BEFORE_THE_OWNER:
        words.pop(0)
    owner = ".".join(words[:-1])
    if owner.isdecimal():
        owner = parameters[int(owner)] if int(owner) < len(parameters) else owner
    return OptimizerName(slot=SLOTS[words[-1]], owner=owner) if owner else None
