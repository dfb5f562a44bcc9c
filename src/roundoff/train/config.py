"""The settings of a training, in one value that is checked when it is created."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from roundoff.errors import TrainError
from roundoff.precision.recipe.recipe import FLAVOURS, ROLES, Role
from roundoff.runs import JsonValue
from roundoff.words import join_words, plural

IMAGE_MODELS = ("resnet-small", "resnet20", "resnet18", "resnet50")
TEXT_MODELS = ("gpt-small", "moe-small")
_WITH_WIDTH = ("resnet-small", "resnet20", *TEXT_MODELS)
IMAGE_DATA = ("digits", "fashion-mnist", "idx:PATH", "folder:PATH")
DATA = (*IMAGE_DATA, "text:PATH")
MODELS = (*IMAGE_MODELS, *TEXT_MODELS, "hf:CONFIG")
OPTIMIZERS = ("sgd", "adam", "adamw", "bert-adam", "rmsprop", "adagrad", "adamax", "nadam", "radam")
SCHEDULES = ("step", "cosine", "linear", "constant")
AUGMENTATIONS = ("crop", "flip", "jitter")
REDUCTIONS = ("mean", "sum")

_DEFAULT_LR = {"sgd": 0.1}
_OTHER_DEFAULT_LR = 1e-3
_TEXT_DEFAULT_LR = 5e-3
"""A batch of text has many more targets than windows."""
_LR_BATCH_SIZE = 256
_CHANGES_NO_NUMBER = {
    *("name", "runs", "resume", "tensorboard", "save_every", "steps", "workers", "eval_only"),
    *("procs", "world_size", "rank", "dist_url", "timeout_seconds"),
}
"""The number of ranks does change the numbers; a checkpoint stores it separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """All settings of a training; invalid values and combinations raise a `TrainError`.

    >>> TrainConfig(batch_size=512, lr=0.1).peak_lr
    0.2
    """

    data: str = "digits"
    model: str = "resnet-small"
    width: int | None = None
    """Channels of the first stage of resnet-small and resnet20, or of a text model's embedding; None: its default."""
    context: int = 128
    """Length of the windows of text data, in bytes."""
    image_size: int = 224
    """Side of the crops of `folder:` images."""
    shrink: int = 1
    """Downsample `idx:` and fashion-mnist images by this factor."""
    limit: int | None = None
    """Train on the first `limit` samples only."""
    input_gain: float = 1.0
    """Multiply every image by this, to see the effect of badly scaled data."""
    augment: tuple[str, ...] | None = None
    """Any of crop, flip and jitter; None: what suits the data."""
    mixup: float = 0.0
    """Parameter of the Beta distribution with which images are mixed in pairs; 0: none."""

    recipe: str = "fp32"
    """A name, or the path of a TOML file."""
    wide: tuple[Role, ...] = ()
    """Layers that stay in fp32 whatever the recipe says: any of router and head."""
    loss_scale: float | str | None = "recipe"
    """'recipe': that of the recipe; 0, 'dynamic' or a flavour such as 'dynamic:torch'; a number: static; None: none."""
    loss_factor: float = 1.0
    """Multiplies the loss for backward only: a tiny factor shows which gradients a narrow format loses."""

    epochs: int = 10
    steps: int | None = None
    """Stop after this many steps; the schedule is still that of `epochs`, so that the training can be resumed."""
    batch_size: int = 64
    """Samples per optimizer step, over all ranks and microbatches."""
    accumulate: int = 1
    """Number of microbatches per step."""
    optimizer: str = "sgd"
    lr: float | None = None
    """Learning rate for a batch of 256; None: the usual one of the optimizer."""
    lr_scaling: bool = True
    """The linear rule: multiply `lr` by batch_size / 256."""
    warmup: float = 0.0
    """Epochs over which the learning rate increases linearly, step by step."""
    schedule: str = "cosine"
    momentum: float = 0.9
    eps: float | None = None
    """Added to the denominator by adam and its relatives; None: the usual one of the optimizer."""
    weight_decay: float = 1e-4
    """Not applied to biases and norms."""
    label_smoothing: float = 0.0
    loss_reduction: str = "mean"
    """Over the samples of a batch: mean, or sum (gradients then grow with the batch)."""
    clip: float | None = None
    """Largest norm of all gradients."""
    ema: float | None = None
    """Decay of the moving average of the weights; evaluation then uses the average."""

    seed: int = 0
    device: str = "auto"
    """'auto': an accelerator if there is one, otherwise the CPU; or a torch device such as 'cpu' or 'cuda:1'."""
    workers: int = 0
    """Data loading processes per rank."""
    threads: int | None = None
    """Threads per rank; None: torch's default, divided among the ranks of this machine."""

    procs: int = 1
    """Number of ranks to start on this machine."""
    world_size: int | None = None
    """Number of ranks on all machines; None: those of this machine."""
    rank: int = 0
    """The first rank on this machine."""
    dist_url: str | None = None
    """Address of rank 0, such as 'tcp://10.0.0.1:29500'; None: on this machine."""
    dist_backend: str | None = None
    """None: gloo on a CPU, the backend of the device on an accelerator."""
    timeout_seconds: float = 600.0
    """How long a rank waits for the others before it fails."""
    find_unused_parameters: bool = False
    sync_bn: bool = False
    """Compute batch norm statistics over all ranks instead of on each rank."""
    fsdp: bool = False
    """Shard weights, gradients and optimizer state over the ranks (FSDP2) instead of replicating them (DDP)."""

    runs: Path | None = Path("runs")
    """Parent directory of the run folder; None: write nothing."""
    name: str | None = None
    """Name of the run; None: train-1, train-2, ..."""
    resume: Path | None = None
    """A checkpoint, or a run folder that has one."""
    eval_only: bool = False
    """Evaluate without training."""
    save_every: int | None = None
    """Save a checkpoint every `save_every` steps in addition to those after each epoch."""
    tensorboard: Path | None = None

    def __post_init__(self) -> None:
        _check_name("data", self.data, DATA)
        _check_name("model", self.model, MODELS)
        _check_choice("optimizer", self.optimizer, OPTIMIZERS)
        _check_choice("schedule", self.schedule, SCHEDULES)
        _check_choice("loss_reduction", self.loss_reduction, REDUCTIONS)
        _check_choices("wide", self.wide, ROLES)
        _check_choices("augment", self.augment or (), (*AUGMENTATIONS, "none"))
        for name in ("epochs", "batch_size", "accumulate", "context", "image_size", "shrink", "procs"):
            self._check_at_least(name, 1)
        for name in ("steps", "width", "limit", "threads", "world_size", "save_every"):
            self._check_at_least(name, 1)
        for name in ("lr", "warmup", "momentum", "weight_decay", "mixup", "workers", "rank", "seed"):
            self._check_at_least(name, 0)
        self._check_share("label_smoothing")
        self._check_share("ema")
        for name in ("clip", "eps", "loss_factor"):
            self._check_positive(name)
        self._check_positive("timeout_seconds")
        self._check_loss_scale()
        self._check_ranks()
        self.check_batch(self.num_ranks)
        check_settings_fit(self)

    @property
    def num_ranks(self) -> int:
        """The configured number of ranks; a launcher such as torchrun overrides it."""
        return self.world_size or self.procs

    @property
    def is_text(self) -> bool:
        """Whether the data is text, not images."""
        return self.data.startswith("text:")

    @property
    def peak_lr(self) -> float:
        """The learning rate after warm-up."""
        usual = _DEFAULT_LR.get(self.optimizer, _TEXT_DEFAULT_LR if self.is_text else _OTHER_DEFAULT_LR)
        base = usual if self.lr is None else self.lr
        return base * self.batch_size / _LR_BATCH_SIZE if self.lr_scaling else base

    def check_batch(self, num_ranks: int) -> None:
        """Raise unless a batch can be divided among ranks and microbatches."""
        parts = num_ranks * self.accumulate
        if self.batch_size % parts:
            nearest = max(parts, round(self.batch_size / parts) * parts)
            raise TrainError.explain(
                f"A batch of {self.batch_size} cannot be divided by {parts}.",
                why=f"it is split into {plural(num_ranks, 'rank')} x "
                f"{plural(self.accumulate, 'microbatch', 'microbatches')}.",
                fix=f"for example: --batch-size {nearest}",
            )

    def to_object(self) -> dict[str, JsonValue]:
        """Return the settings as JSON values, for run.json and checkpoints."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def command(self, *, without: Collection[str] = ()) -> str:
        """Return the command line that trains with these settings, leaving out defaults and those in `without`.

        >>> TrainConfig(recipe="O2", threads=2, lr_scaling=False).command()
        'roundoff train --recipe O2 --no-lr-scaling --threads 2'
        """
        words = ["roundoff", "train"]
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default and field.name not in without:
                words += _option(field.name, value)
        return shlex.join(words)

    def changes_since(self, before: dict[str, JsonValue]) -> list[str]:
        """Return the settings that make a resumed training differ from an uninterrupted one."""
        now = self.to_object()
        names = [name for name in now if name not in _CHANGES_NO_NUMBER and name in before]
        return [f"{name} {now[name]}, was {before[name]}" for name in names if now[name] != before[name]]

    def _check_at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise _invalid(name, value, f"it must be at least {least}.")

    def _check_share(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and not 0 <= value < 1:
            raise _invalid(name, value, "it must be at least 0 and below 1.")

    def _check_positive(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and not 0 < value < math.inf:
            raise _invalid(name, value, "it must be above 0.")

    def _check_loss_scale(self) -> None:
        scale, flavours = self.loss_scale, [f"dynamic:{name}" for name in FLAVOURS]
        if scale in ("recipe", "dynamic", None, *flavours) or (
            isinstance(scale, int | float) and 0 <= scale < math.inf
        ):
            return
        raise _invalid(
            "loss_scale",
            scale,
            f"allowed: 0 (dynamic), a positive number (static), none, dynamic, or one of {', '.join(flavours)}.",
        )

    def _check_ranks(self) -> None:
        if self.name is not None and (Path(self.name).name != self.name or self.name == ".."):
            raise _invalid(
                "name", self.name, "it must be the name of a folder, without a path; --runs sets the parent directory."
            )
        if self.rank + self.procs > self.num_ranks:
            raise TrainError.explain(
                f"Rank {self.rank + self.procs - 1} does not exist among {self.num_ranks}.",
                why=f"this machine starts {plural(self.procs, 'rank')}, beginning with rank {self.rank}.",
                fix="set --world-size to the ranks of all machines, and --rank to the first one on this machine.",
            )
        if self.num_ranks > self.procs and self.dist_url is None:
            raise TrainError.explain(
                f"The {self.num_ranks} ranks on several machines have no address to meet at.",
                fix="pass the same address of rank 0 on every machine: --dist-url tcp://HOST:29500",
            )


def _check_name(field: str, value: str, known: Sequence[str]) -> None:
    """Check a name that may include a path: 'folder:PATH'."""
    kind, colon, rest = value.partition(":")
    forms = {name.partition(":")[0]: ":" in name for name in known}
    if kind in forms and forms[kind] == bool(colon and rest):
        return
    raise _invalid(field, value, f"known are {', '.join(known)}.")


def _check_choice(field: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise _invalid(field, value, f"known are {', '.join(known)}.")


def _check_choices(field: str, values: Sequence[str], known: Sequence[str]) -> None:
    if isinstance(values, str):  # each of its letters would be taken for a name
        raise _invalid(field, values, f"it must be a tuple of names, such as ({values!r},), or None.")
    for value in values:
        _check_choice(field, value, known)


def _invalid(name: str, value: object, why: str) -> TrainError:
    return TrainError.explain(f"Invalid --{name.replace('_', '-')} '{value}'.", why=why)


def _option(name: str, value: object) -> list[str]:
    option = f"--{name.removesuffix('_seconds').replace('_', '-')}"
    if isinstance(value, bool):
        return [option] if value else [option.replace("--", "--no-", 1)]
    if isinstance(value, tuple):
        return [option, ",".join(map(str, value))]
    return [option, "none" if value is None else str(value)]


def _plain(value: object) -> JsonValue:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    assert value is None or isinstance(value, str | int | float)
    return value


class _Use(NamedTuple):
    """A setting, the value that means it is not set, when it has an effect, and that in words."""

    name: str
    unset: object
    counts: Callable[[TrainConfig], bool]
    places: str


_USES = (
    _Use("shrink", 1, lambda c: c.data == "fashion-mnist" or c.data.startswith("idx:"), "fashion-mnist and idx:PATH"),
    _Use("image_size", 224, lambda c: c.data.startswith("folder:"), "folder:PATH"),
    _Use("context", 128, lambda c: c.is_text, "text:PATH"),
    _Use("width", None, lambda c: c.model in _WITH_WIDTH, join_words(_WITH_WIDTH)),
    _Use("eps", None, lambda c: c.optimizer != "sgd", "optimizers other than sgd"),
    _Use("augment", None, lambda c: not c.is_text or c.augment == ("none",), "images"),
    _Use("mixup", 0.0, lambda c: not c.is_text, "images"),
    _Use("input_gain", 1.0, lambda c: not c.is_text, "images"),
)


def check_settings_fit(config: TrainConfig) -> None:
    """Raise a `TrainError` if the model does not fit the data, or a setting would have no effect."""
    _check_model_fits_data(config)
    for use in _USES:
        value = getattr(config, use.name)
        if value != use.unset and not use.counts(config):
            option = f"--{use.name.replace('_', '-')}"
            raise TrainError.explain(
                f"{option} has no effect here.",
                why=f"it only applies to {use.places}.",
                fix=f"remove {option}.",
            )
    if config.eval_only and config.resume is None:
        raise TrainError.explain(
            "--eval-only needs --resume.",
            why="without it the weights are random.",
            fix="pass a run folder or a checkpoint: --resume runs/train-1",
        )


def _check_model_fits_data(config: TrainConfig) -> None:
    if config.model.startswith("hf:"):
        return
    if config.is_text == (config.model in IMAGE_MODELS):
        fitting = ", ".join(TEXT_MODELS if config.is_text else IMAGE_MODELS) + " or hf:CONFIG"
        raise TrainError.explain(
            f"The model '{config.model}' cannot be trained on '{config.data}'.",
            why=f"it takes {'images' if config.is_text else 'text'}.",
            fix=f"use --model {fitting}.",
        )
