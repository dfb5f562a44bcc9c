"""Which settings of a training go together: a setting that would change nothing is refused, not ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from roundoff.errors import TrainError

if TYPE_CHECKING:
    from roundoff.train.config import TrainConfig

IMAGE_MODELS = ("resnet-small", "resnet18", "resnet50")


class _Use(NamedTuple):
    """A setting, the value that means it was not set, where it counts, and those places in words."""

    name: str
    unset: object
    counts: Callable[[TrainConfig], bool]
    places: str


_USES = (
    _Use("shrink", 1, lambda c: c.data == "fashion-mnist" or c.data.startswith("idx:"), "fashion-mnist and idx:PATH"),
    _Use("image_size", 224, lambda c: c.data.startswith("folder:"), "folder:PATH"),
    _Use("context", 128, lambda c: c.is_text, "text:PATH"),
    _Use("width", None, lambda c: c.model in ("resnet-small", "gpt-small"), "resnet-small and gpt-small"),
    _Use("eps", None, lambda c: c.optimizer != "sgd", "optimizers other than sgd"),
    _Use("augment", None, lambda c: not c.is_text or c.augment == ("none",), "pictures"),
    _Use("mixup", 0.0, lambda c: not c.is_text, "pictures"),
    _Use("input_gain", 1.0, lambda c: not c.is_text, "pictures"),
)


def check_fitting(config: TrainConfig) -> None:
    """Raise a `TrainError` unless the model can take the data, and every setting that was set counts."""
    _check_model_fits_data(config)
    for use in _USES:
        value = getattr(config, use.name)
        if value != use.unset and not use.counts(config):
            option = f"--{use.name.replace('_', '-')}"
            raise TrainError.explain(
                f"{option} would change nothing here.",
                why=f"it is for {use.places}.",
                fix=f"leave {option} out.",
            )
    if config.eval_only and config.resume is None:
        raise TrainError.explain(
            "--eval-only has nothing to evaluate.",
            why="without --resume the weights are random.",
            fix="name a run folder or a checkpoint: --resume runs/train-1",
        )


def _check_model_fits_data(config: TrainConfig) -> None:
    if config.model.startswith("hf:"):
        return
    if config.is_text == (config.model in IMAGE_MODELS):
        fitting = "gpt-small or hf:CONFIG" if config.is_text else ", ".join(IMAGE_MODELS) + " or hf:CONFIG"
        raise TrainError.explain(
            f"The model '{config.model}' cannot be trained on '{config.data}'.",
            why=f"it takes {'pictures' if config.is_text else 'text'}.",
            fix=f"use --model {fitting}.",
        )
