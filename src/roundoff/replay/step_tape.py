"""The tape of one step: what the loop's own code did, with everything needed to do it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.accelerator import accelerator_type, is_autocast_on
from roundoff.replay.arguments import ExternalTensor, Live, resolve


@dataclass(frozen=True, slots=True)
class Ambient:
    """Whether gradients and autocast were on around a call."""

    gradients: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def now(cls) -> Ambient:
        """Read both from torch."""
        if not is_autocast_on():
            return _PLAIN if torch.is_grad_enabled() else _PLAIN_WITHOUT_GRADIENTS
        kinds = ["cpu", *([kind] if (kind := accelerator_type()) else [])]
        casts = tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds)
        return cls(torch.is_grad_enabled(), casts)


_PLAIN = Ambient(True, ())
_PLAIN_WITHOUT_GRADIENTS = Ambient(False, ())


@dataclass(slots=True, eq=False)
class ModelEntry:
    """The loop called a model, or any module."""

    owner: Any
    """The module, or a placeholder that does not keep it alive."""
    args: Any
    kwargs: Any
    ambient: Ambient
    generators: Any
    is_training: bool
    num_results: int = 0
    raised: bool = False
    """Whether it raised an exception that the loop caught."""
    line: tuple[str, int] | None = None
    replaced: Any = None
    """Tensors by name that `torch.func.functional_call` put in the place of parameters and buffers."""

    @property
    def module(self) -> nn.Module:
        """The module that was called."""
        return cast(nn.Module, resolve(self.owner))


@dataclass(slots=True, eq=False)
class FunctionEntry:
    """The loop called a torch function."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    ambient: Ambient
    line: tuple[str, int] | None
    num_results: int = 0


@dataclass(slots=True, eq=False)
class BackwardEntry:
    """The autograd engine was started."""

    roots: Any
    args: Any
    kwargs: Any
    line: tuple[str, int] | None
    loss: Tensor | None
    """The value of the loss, to check the replay."""
    raised: bool = False


@dataclass(slots=True, eq=False)
class LoopEntry:
    """The loop called zero_grad, clipping, or a method of a scaler."""

    called: Any
    """The function, or a placeholder for a method that does not keep its owner alive."""
    args: Any
    kwargs: Any
    line: tuple[str, int] | None
    raised: bool = False

    @property
    def function(self) -> Callable[..., Any]:
        """The function that was called."""
        return cast(Callable[..., Any], resolve(self.called))


@dataclass(slots=True, eq=False)
class StepEntry:
    """An optimizer stepped; `closures` holds what its closure did, once for each time it was called."""

    owner: Any
    """The optimizer, or a placeholder that does not keep it alive."""
    settings: list[dict[str, Any]]
    """Learning rate and other settings, by parameter group."""
    line: tuple[str, int] | None
    closures: list[list[TapeEntry]] = field(default_factory=list)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that stepped."""
        return cast(Optimizer, resolve(self.owner))


TapeEntry = ModelEntry | FunctionEntry | BackwardEntry | LoopEntry | StepEntry


@dataclass(slots=True, eq=False)
class StepTape:
    """One step of the loop."""

    step: int
    entries: list[TapeEntry] = field(default_factory=list)
    external: list[ExternalTensor] = field(default_factory=list)
    live: tuple[Live, ...] = ()
    """What the script must still have for the step to be played again."""
    reached_steps: frozenset[int] = frozenset()
    """Earlier steps into whose graphs this one continues: it can be replayed only together with them."""
    why_not_replayable: str | None = None
    """Why the step cannot be replayed, if something could not be taped."""
    num_generator_bytes: int = 0
    """The size of the states of random generators."""
    num_nodes: int = 0
    """How many autograd nodes the step has made, inside of models too: about as many as ops ran forward."""

    @property
    def can_be_replayed(self) -> bool:
        """Whether everything could be taped, and the script still has what the step used."""
        return self.why_not_replayable is None and all(live.is_alive for live in self.live)

    @property
    def num_bytes(self) -> int:
        """The size of the copies."""
        return sum(external.num_bytes for external in self.external)

    @property
    def losses(self) -> list[Tensor]:
        """The losses that backward started from, in order."""
        return [
            entry.loss
            for entry in flatten_entries(self.entries)
            if isinstance(entry, BackwardEntry) and entry.loss is not None
        ]


def flatten_entries(entries: list[TapeEntry]) -> list[TapeEntry]:
    """Return the entries and those inside closures, in order."""
    found: list[TapeEntry] = []
    for entry in entries:
        found.append(entry)
        if isinstance(entry, StepEntry):
            for closure in entry.closures:
                found.extend(flatten_entries(closure))
    return found


def estimate_ops(tape: StepTape) -> int:
    """Return about how many ops a step has, forward, backward and in updates.

    Forward there is one for each autograd node and backward there are two. A model may call its modules any number of
    times; the number of those it has counts where it ran without gradients.
    """
    by_entries = updates = 0
    for entry in flatten_entries(tape.entries):
        if isinstance(entry, ModelEntry):
            by_entries += 6 * sum(1 for _ in entry.module.modules())
        elif isinstance(entry, FunctionEntry):
            by_entries += 3
        elif isinstance(entry, StepEntry):
            num_parameters = sum(len(group["params"]) for group in entry.optimizer.param_groups)
            updates += 8 * num_parameters * max(len(entry.closures), 1)
    return max(by_entries, 3 * tape.num_nodes) + updates


def number_results(entries: list[TapeEntry]) -> list[tuple[TapeEntry, range]]:
    """Return the entries, each with the numbers of its results."""
    found: list[tuple[TapeEntry, range]] = []
    count = 0
    for entry in flatten_entries(entries):
        num_results = entry.num_results if isinstance(entry, (ModelEntry, FunctionEntry)) else 0
        found.append((entry, range(count, count + num_results)))
        count += num_results
    return found
