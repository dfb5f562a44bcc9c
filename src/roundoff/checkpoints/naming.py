"""Names and roles: which tensors are the model's, what they are called in it, and what each is for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from roundoff.checkpoints.checkpoint import Role
from roundoff.checkpoints.lazy_tensor import LazyTensor
from roundoff.checkpoints.tree import Path

MODEL_CONTAINERS = frozenset(
    [
        "model",
        "state_dict",
        "module",
        "model_state_dict",
        "model_state",
        "params",
        "batch_stats",
        "model_weights",
    ]
)
"""A dict of this name in a training's checkpoint holds the model, or a part of it."""

WRAPPERS = frozenset({"state_dict", "module", "_orig_mod"})
"""What wrappers put before every name of a model."""

BUFFERS = frozenset(
    [
        "running_mean",
        "running_var",
        "num_batches_tracked",
        "moving_mean",
        "moving_variance",
        "moving_var",
        "_mean",
        "_variance",
        "position_ids",
        "inv_freq",
        "relative_position_index",
        "attn_mask",
        "causal_mask",
        "masked_bias",
    ]
)
"""What buffers are called, by the last part of their names."""

COUNTERS = frozenset(
    [
        "epoch",
        "epochs",
        "epoch_num",
        "step",
        "steps",
        "step_num",
        "global_step",
        "iteration",
        "iterations",
        "lr",
        "learning_rate",
        "momentum",
        "weight_decay",
        "beta1_power",
        "beta2_power",
        "loss_scale",
        "scale_sense",
        "current_iterator_step",
        "last_overflow_iterator_step",
        "best_acc",
        "seed_generator_state",
    ]
)
"""What single numbers beside the model are called."""

_AVERAGES = re.compile(r"(^|_)(ema|swa|average|averaged|teacher)(_|$)", re.IGNORECASE)
_OPTIMIZER_PART = re.compile(r"opt|optims?|(\w+_)?optimi[sz]er\w*|opt_state\w*|lr_sched\w*", re.IGNORECASE)
_OPTIMIZER_STATE = re.compile(
    r"^(moments|moment1|moment2|accum|stat|adam_m|adam_v|velocity|exp_avg|exp_avg_sq|mean_square|mean_gradient)\."
    r"|_(velocity|moment|moment1|moment2|beta1_pow_acc|beta2_pow_acc|mean_square|mean_grad|momentum|inf_norm)_\d+$"
    r"|\.(exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer|square_avg|acc_delta)$"
)


def model_names(paths: Iterable[Path]) -> dict[Path, str]:
    """Give every tensor its dotted name; those of the model lose what wrappers and containers put before them.

    >>> model_names([("model", "module.conv.weight"), ("optimizer", "state", "0", "step")])
    {('model', 'module.conv.weight'): 'conv.weight', ('optimizer', 'state', '0', 'step'): 'optimizer.state.0.step'}
    """
    names = {path: ".".join(path) for path in paths}
    contained = {path for path in names if is_contained(path)}
    beside = {path for path, name in names.items() if is_optimizers(name) or _last(name) in COUNTERS}
    model = contained or names.keys() - beside
    short = {path: ".".join(path[1:]) if path in contained else names[path] for path in model}
    while short and (first := _common_wrapper(short.values())):
        short = {path: name.removeprefix(f"{first}.") for path, name in short.items()}
    shortened = {path: short.get(path, name) for path, name in names.items()}
    return shortened if len(set(shortened.values())) == len(names) else names


def is_contained(path: Path) -> bool:
    """Say whether a tensor is in a dict that is called as a model's is."""
    return len(path) > 1 and path[0] in MODEL_CONTAINERS


def is_beside_model(path: Path) -> bool:
    """Say whether a tensor of a checkpoint that has a dict for its model is none of it: alone, or an average of it."""
    return len(path) == 1 or path[0] in ("callbacks", "loops") or bool(_AVERAGES.search(path[0]))


def role_of(path: Path, tensor: LazyTensor, *, has_container: bool = False) -> Role:
    """Say what a tensor is for: as the file says, or else by its name, its dtype and whether the model is elsewhere."""
    name = ".".join(path)
    last = _last(name)
    is_number = all(size == 1 for size in tensor.shape)
    if tensor.role is not None:
        return tensor.role
    if is_optimizers(name):
        return Role.OPTIMIZER
    if last in BUFFERS or path[0] == "batch_stats":
        return Role.BUFFER
    if (has_container and is_beside_model(path)) or (is_number and last in COUNTERS):
        return Role.OTHER
    if not tensor.dtype.startswith(("float", "bfloat", "complex")):
        return Role.OTHER if is_number else Role.BUFFER
    return Role.PARAMETER


def is_optimizers(name: str) -> bool:
    """Say whether a dotted name is that of an optimizer's state."""
    return any(_OPTIMIZER_PART.fullmatch(part) for part in name.split(".", 2)[:2]) or bool(
        _OPTIMIZER_STATE.search(name)
    )


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _common_wrapper(names: Iterable[str]) -> str | None:
    firsts = {name.partition(".")[0] if "." in name else "" for name in names}
    return firsts.pop() if len(firsts) == 1 and firsts <= WRAPPERS else None
