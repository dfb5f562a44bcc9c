"""A recipe applied to a model: how it computes, its weights, its buffers and the loss scale, for all its optimizers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from roundoff.precision.compute.computation import Computation
from roundoff.precision.loss_scaler import LossScaler
from roundoff.precision.recipe.recipe import Recipe
from roundoff.precision.weights import Weight, Weights, agreed_overflow, first_nonfinite, unscale, with_gradient
from roundoff.torch_private import foreach_copy_

if TYPE_CHECKING:
    from roundoff.precision.optimizer import RecipeOptimizer


class BufferRollback:
    """Copies a model's buffers before the first forward of a step, and restores them if the step is skipped.

    torch.amp skips the weight update of an overflowed step but keeps its batch-norm statistics.
    """

    def __init__(self) -> None:
        self._copies: list[Tensor] = []
        self._buffers: list[Tensor] = []
        self._taken = False
        self._hook: RemovableHandle | None = None

    def attach(self, model: nn.Module) -> None:
        """Copy the buffers of `model` before the first forward of each step."""
        self._hook = model.register_forward_pre_hook(self._before_forward)

    def detach(self) -> None:
        """Stop copying."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if self._taken or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        buffers = list(module.buffers())
        if len(buffers) != len(self._copies) or any(
            a.shape != b.shape or a.dtype != b.dtype or a.device != b.device
            for a, b in zip(buffers, self._copies, strict=False)
        ):
            self._copies = [buffer.detach().clone() for buffer in buffers]
        elif buffers:
            foreach_copy_(self._copies, buffers)
        self._buffers = buffers
        self._taken = True

    def restore(self) -> None:
        """Restore the buffers to their values before the step."""
        if self._taken and self._buffers:
            with torch.no_grad():
                foreach_copy_(self._buffers, self._copies)

    def forget(self) -> None:
        """End the step: copy the buffers again before the next forward."""
        self._taken = False

    def remember(self) -> tuple[list[Tensor], list[Tensor], bool]:
        """Return the state, for `recall`."""
        return [copy.clone() for copy in self._copies], list(self._buffers), self._taken

    def recall(self, memory: tuple[list[Tensor], list[Tensor], bool]) -> None:
        """Return to an earlier state."""
        copies, buffers, self._taken = memory
        self._copies, self._buffers = [copy.clone() for copy in copies], list(buffers)

    def __deepcopy__(self, memo: dict[int, Any]) -> BufferRollback:
        # A copied model has no optimizer that could skip its steps, so its hook does nothing.
        copy = object.__new__(BufferRollback)
        copy._copies, copy._buffers, copy._taken = [], [], True
        return copy


class Removable(Protocol):
    """Something a recipe adds to a model: compressed activations, fixed point."""

    def remove(self) -> None:
        """Remove it from the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """The loss scale, counts, histories and copied buffers of a model with a recipe at one moment.

    Parameters, buffers, main weights and the inner optimizer's state are not included: the caller saves those tensors.
    """

    scalers: list[dict[str, Any]]
    computation: dict[str, Any]
    updates: dict[str, Any]
    current: dict[Tensor, bool]
    """By parameter: whether its main weight is up to date with it."""
    buffers: list[tuple[list[Tensor], list[Tensor], bool]]
    counts: tuple[int, float | None, list[str | None], dict[int, str | None]]
    optimizers: list[tuple[list[Weight] | None, str | None]]


class AppliedRecipe:
    """One model, or several, with one recipe.

    With several optimizers, a step of the loss scaler ends when all have stepped, or at the next backward. With several
    losses, each has a scaler of its own, and its gradients are unscaled right after its backward.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        computation: Computation,
        weights: Weights,
        scalers: Sequence[LossScaler],
        buffers: Sequence[BufferRollback],
        extras: list[Removable],
        log_losses: bool,
    ) -> None:
        self.recipe = recipe
        self.computation = computation
        self.weights = weights
        self.scalers = scalers
        self.buffers = buffers
        self.extras = extras
        self.optimizers: list[RecipeOptimizer] = []
        self.num_backwards = 0
        self._log_losses = log_losses
        self._loss: float | None = None
        self._overflows: list[str | None] = []
        self._loss_overflows: dict[int, str | None] = {}
        """By number of the loss, for those of this step: its first gradient that was not finite."""

    @property
    def scaler(self) -> LossScaler:
        """The scaler of the first loss, usually the only one."""
        return self.scalers[0]

    @property
    def gradient_scale(self) -> float:
        """The factor that gradients contain after a backward."""
        return self.scaler.scale if len(self.scalers) == 1 else 1.0

    def backward(self, loss: Tensor, loss_id: int, **kwargs: Any) -> None:
        """Scale a loss and run its backward; with several losses, add its gradients, unscaled, to those before."""
        scale = self.scalers[loss_id].scale
        scaled = loss if scale == 1.0 else loss.float() * scale
        if len(self.scalers) == 1:
            scaled.backward(**kwargs)
            return
        weights = list(self.weights.by_parameter.values())
        earlier = [(w.parameter, w.parameter.grad) for w in weights if w.parameter.grad is not None]
        for parameter, _ in earlier:
            parameter.grad = None
        scaled.backward(**kwargs)
        self.weights.widen_gradients()
        having = with_gradient(weights)
        device = having[0].parameter.device if having else torch.device("cpu")
        overflow = agreed_overflow(first_nonfinite(having), device)
        self._loss_overflows[loss_id] = self._loss_overflows.get(loss_id) or overflow
        unscale(having, scale)
        for parameter, grad in earlier:
            parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)

    def note_backward(self, loss: Tensor) -> None:
        """Note that a loss is about to be scaled."""
        if self._overflows:
            self._end_step()
        self.num_backwards += 1
        if self._log_losses:
            self._loss = (self._loss or 0.0) + float(loss.detach())

    def note_step(self, overflow: str | None) -> None:
        """Note that one optimizer has stepped, or has skipped its step because of the gradient `overflow`."""
        if overflow is not None:
            for buffers in self.buffers:
                buffers.restore()
        self._overflows.append(overflow)
        if len(self._overflows) >= len(self.optimizers):
            self._end_step()

    def _end_step(self) -> None:
        overflow = next((name for name in self._overflows if name is not None), None)
        loss, self._loss = self._loss, None
        self._overflows = []
        self.num_backwards = 0
        for buffers in self.buffers:
            buffers.forget()
        if len(self.scalers) == 1:
            self.scaler.update(overflow=overflow, loss=loss)
            return
        ended, self._loss_overflows = self._loss_overflows, {}
        for loss_id, of_loss in ended.items():
            self.scalers[loss_id].update(overflow=of_loss, loss=loss)

    def remember(self) -> StepMemory:
        """Return a copy of the state at the start of the next step."""
        return StepMemory(
            scalers=[scaler.remember() for scaler in self.scalers],
            computation=copy.deepcopy(self.computation.state_dict()),
            updates=copy.deepcopy(self.weights.state_dict()),
            current={p: p._version == weight.version for p, weight in self.weights.by_parameter.items()},
            buffers=[buffers.remember() for buffers in self.buffers],
            counts=(self.num_backwards, self._loss, list(self._overflows), dict(self._loss_overflows)),
            optimizers=[optimizer.remember_gradients() for optimizer in self.optimizers],
        )

    def recall(self, memory: StepMemory) -> None:
        """Return to an earlier state; the tensors must be restored already, or be restored without a new version."""
        for scaler, state in zip(self.scalers, memory.scalers, strict=True):
            scaler.recall(state)
        self.computation.recall(copy.deepcopy(memory.computation))
        self.weights.load_state_dict(copy.deepcopy(memory.updates))
        for parameter, is_current in memory.current.items():
            self.weights.by_parameter[parameter].version = parameter._version if is_current else -1
        for buffers, copies in zip(self.buffers, memory.buffers, strict=True):
            buffers.recall(copies)
        self.num_backwards, self._loss, overflows, of_losses = memory.counts
        self._overflows, self._loss_overflows = list(overflows), dict(of_losses)
        for optimizer, gradients in zip(self.optimizers, memory.optimizers, strict=True):
            optimizer.recall_gradients(gradients)

    @contextlib.contextmanager
    def repeating(self, memory: StepMemory) -> Iterator[None]:
        """Return to an earlier state inside the block, without logging; afterwards the present state is back.

        A block that resets the versions of tensors must be inside this one.
        """
        own = self.remember()
        weights = list(self.weights.by_parameter.values())
        versions = [weight.grad_version for weight in weights]
        logs = [scaler.log for scaler in self.scalers]
        for scaler in self.scalers:
            scaler.log = None
        self.recall(memory)
        try:
            yield
        finally:
            self.recall(own)
            for scaler, log in zip(self.scalers, logs, strict=True):
                scaler.log = log
            for weight, version in zip(weights, versions, strict=True):
                weight.grad_version = version

    def report(self) -> str:
        """Describe in a few lines how the model trains."""
        recipe, settings = self.recipe, self.scaler.settings
        lines = [
            f"recipe      {recipe.name}{f': {recipe.description}' if recipe.description else ''}",
            f"arithmetic  {self.computation.arithmetic}, {recipe.compute_format}",
        ]
        if recipe.device_profile:
            lines.append(f"device      {recipe.device_profile}, emulated")
        if recipe.optimizer_states:
            lines.append(f"optimizer   state in {' and '.join(recipe.optimizer_states)}")
        scaling = settings.kind + (f" ({settings.flavour})" if settings.flavour else "")
        lines.append(f"loss scale  {scaling}, now {self.scaler.scale:g}, {self.scaler.num_skips} skipped")
        lines += [f"override    {pattern} = {fmt}" for pattern, fmt in recipe.overrides.items()]
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed training needs besides that of the optimizer."""
        return {
            "recipe": self.recipe.name,
            "scaler": self.scaler.state_dict(),
            **({"more_scalers": [each.state_dict() for each in self.scalers[1:]]} if len(self.scalers) > 1 else {}),
            "weights": self.weights.state_dict(),
            "computation": self.computation.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; state of another recipe that this one does not have is ignored."""
        for scaler, saved in zip(self.scalers, [state["scaler"], *state.get("more_scalers", ())], strict=False):
            scaler.load_state_dict(saved)
        self.weights.load_state_dict(state.get("weights", {}))
        self.computation.load_state_dict(state.get("computation", {}))

    def remove(self) -> None:
        """Remove all hooks from the model."""
        self.computation.detach()
        for buffers in self.buffers:
            buffers.detach()
        for extra in self.extras:
            extra.remove()
