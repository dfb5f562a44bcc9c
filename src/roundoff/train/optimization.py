"""The loss that a training minimises, optimizers by name, the learning-rate schedule, the average of the weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from roundoff.train.config import TrainConfig
from roundoff.train.data import IGNORED, Batch


def loss_of(logits: Tensor, batch: Batch, *, label_smoothing: float = 0.0, reduction: str = "mean") -> Tensor:
    """Return the cross entropy of a batch in fp32, over the targets that are not `IGNORED`; 0 if all are.

    With mixup it is the mixture of the losses for both targets.
    """
    rows = _rows(logits)

    def total(targets: Tensor) -> Tensor:
        return F.cross_entropy(
            rows, targets.flatten(), ignore_index=IGNORED, label_smoothing=label_smoothing, reduction="sum"
        )

    loss = total(batch.targets)
    if batch.other_targets is not None:
        loss = batch.share * loss + (1 - batch.share) * total(batch.other_targets)
    return loss if reduction == "sum" else loss / num_targets(batch).clamp(min=1)


def num_targets(batch: Batch) -> Tensor:
    """Return the number of targets that are not `IGNORED`."""
    return (batch.targets != IGNORED).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The accuracy of a model, from 0 to 1, and its mean loss."""

    top1: float
    top5: float
    loss: float
    num_places: int
    """The number of images, or of bytes of text."""

    @property
    def perplexity(self) -> float:
        """E to the power of the loss."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


def tally(logits: Tensor, batch: Batch) -> Tensor:
    """Return (targets, loss, top-1 hits, top-5 hits) of a batch as sums in fp64, to be added over batches and ranks.

    A row of logits with a non-finite value counts as wrong.
    """
    rows, targets = _rows(logits), batch.targets.flatten()
    loss = F.cross_entropy(rows, targets, ignore_index=IGNORED, reduction="sum")
    best = rows.topk(min(5, rows.shape[-1]), dim=-1).indices
    hits = (best == targets[:, None]) & rows.isfinite().all(-1, keepdim=True)
    sums = [(targets != IGNORED).sum(), loss, hits[:, 0].sum(), hits.any(-1).sum()]
    return torch.stack([value.to(torch.float64) for value in sums])


def score_from(sums: Tensor) -> Score:
    """Return the score from the sums over all batches and ranks."""
    places, loss, right, among_five = sums.tolist()
    count = max(1.0, places)
    return Score(top1=right / count, top5=among_five / count, loss=loss / count, num_places=int(places))


def _rows(logits: Tensor) -> Tensor:
    return logits.flatten(0, -2).float()


_STEPS = ((0.8, 1e-3), (0.6, 1e-2), (0.3, 1e-1))
"""The learning-rate factor from each share of all steps on."""


class BertAdam(Optimizer):
    """AdamW without bias correction, as used for BERT. Its first steps are about three times larger: use a warm-up."""

    def __init__(
        self,
        params: Any,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = cast(dict[str, Tensor], self.state[parameter])
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        grad, (beta1, beta2) = cast(Tensor, parameter.grad), group["betas"]
        state["exp_avg"].lerp_(grad, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        update = state["exp_avg"] / state["exp_avg_sq"].sqrt().add_(group["eps"])
        parameter.add_(update.add_(parameter, alpha=group["weight_decay"]), alpha=-group["lr"])


_KINDS: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "bert-adam": BertAdam,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
}
_WITH_MOMENTUM = ("sgd", "rmsprop")


def build_optimizer(config: TrainConfig, model: nn.Module) -> Optimizer:
    """Create the configured optimizer for the parameters of `model`."""
    options: dict[str, Any] = {"lr": config.peak_lr}
    if config.optimizer in _WITH_MOMENTUM:
        options["momentum"] = config.momentum
    if config.eps is not None:
        options["eps"] = config.eps
    groups = decay_groups(model.named_parameters(), weight_decay=config.weight_decay)
    return _KINDS[config.optimizer](groups, **options)


def decay_groups(named: Iterable[tuple[str, nn.Parameter]], *, weight_decay: float) -> list[dict[str, Any]]:
    """Group parameters into those with weight decay and those without: biases and the parameters of norms.

    The latter are those with a single dimension: shrinking them shifts the function instead of simplifying it.
    """
    trained = [parameter for _, parameter in named if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def lr_at(step: int, *, peak: float, schedule: str, total_steps: int, warmup_steps: int) -> float:
    """Return the learning rate of a step, counted from 0; as a pure function it has no state to save.

    It increases linearly to `peak` over `warmup_steps`. Then 'step' divides it by ten after 30, 60 and 80 % of all
    steps, 'cosine' and 'linear' decrease it to 0 at the end, and 'constant' keeps it.

    >>> [round(lr_at(step, peak=1, schedule="linear", total_steps=6, warmup_steps=2), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "step":
        return peak * next((factor for share, factor in _STEPS if step >= share * total_steps), 1.0)
    done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    if schedule == "cosine":
        return peak * (1 + math.cos(math.pi * done)) / 2
    if schedule == "linear":
        return peak * (1 - done)
    assert schedule == "constant", schedule
    return peak


class WeightAverage:
    """A moving average of a model's parameters in fp32, which often evaluates better than the last weights.

    Buffers such as the statistics of batch norm are averages already and are not averaged again.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self._decay = decay
        self._averages = {name: parameter.detach().float().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the weights by 1 - decay."""
        for name, parameter in model.named_parameters():
            self._averages[name].lerp_(parameter.detach().float(), 1 - self._decay)

    @contextlib.contextmanager
    def in_place_of_weights(self, model: nn.Module) -> Iterator[None]:
        """Use the average as the model's weights inside the block."""
        parameters = dict(model.named_parameters())
        weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        _write(parameters, self._averages)
        try:
            yield
        finally:
            _write(parameters, weights)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages by parameter name."""
        return dict(self._averages)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from saved averages."""
        _write(self._averages, state)


@torch.no_grad()
def _write(to: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, tensor in to.items():
        # Through `data`, which does not change the version: master weights are updated when other code writes to the
        # model, and would end up rounded.
        tensor.data.copy_(values[name])
