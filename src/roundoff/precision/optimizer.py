"""The optimizer that `apply_recipe` returns: scales the loss, checks the gradients, and steps or skips."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from roundoff.errors import RecipeError
from roundoff.precision.applied_recipe import AppliedRecipe, Removable, StepMemory
from roundoff.precision.optimizer_states import PackedStates, expand_state_dict, split_state_dict, state_format_for
from roundoff.precision.recipe.recipe import Recipe
from roundoff.precision.recipe.toml import to_toml
from roundoff.precision.weights import Weight, agreed_overflow, first_nonfinite, hand_over, unscale, with_gradient
from roundoff.torch_private import mark_as_stepped


class Overflowed(Exception):
    """A closure's gradients are not finite. Raised through the inner optimizer's step, and caught right after it."""


class StepUndo:
    """A copy of the main weights and the optimizer state, to undo a step whose closure overflows halfway."""

    def __init__(self, weights: Sequence[Weight], optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._mains = [weight.main for weight in weights]
        self._values = [main.detach().clone() for main in self._mains]
        self._state = {main: _copy_state(state) for main, state in optimizer.state.items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the copied values."""
        for main, value in zip(self._mains, self._values, strict=True):
            main.copy_(value)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


def _copy_state(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copy_state(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy_state(item) for item in value]
    return value


_EXTRA = "roundoff"


class RecipeOptimizer(Optimizer):
    """Wraps a torch optimizer, for a model with a recipe.

    `param_groups`, `state` and `defaults` are those of the inner optimizer, so schedulers work. With master weights,
    the groups contain the master weights. Use `backward(loss)` instead of `loss.backward()`; a step with non-finite
    gradients is skipped, and the model's buffers are restored to their values before it.
    """

    def __init__(self, inner: Optimizer, shared: AppliedRecipe) -> None:
        self.inner = inner
        self._shared = shared
        self._weights: list[Weight] = []
        self._unscaled: list[Weight] | None = None
        self._overflow: str | None = None
        # Makes the hook tables of the base class, whose constructor would need parameter groups of its own.
        self.__setstate__({})
        for place, group in enumerate(inner.param_groups):
            self._adopt(group, place)
        name = state_format_for(inner, shared.recipe)
        self._packed = None if name is None else PackedStates(inner, name)
        shared.optimizers.append(self)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The inner optimizer's groups."""
        return self.inner.param_groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:  # type: ignore[override]
        """The inner optimizer's state; with adam8, `exp_avg` is packed in `exp_avg_adam8_codes` and `..._scales`."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The inner optimizer's defaults."""
        return self.inner.defaults

    @property
    def recipe(self) -> Recipe:
        """The recipe that was applied."""
        return self._shared.recipe

    @property
    def recipe_text(self) -> str:
        """The recipe as TOML, for what a run says about itself."""
        return to_toml(self.recipe)

    @property
    def arithmetic(self) -> str:
        """How narrow formats are computed: `native` or `emulated`."""
        return self._shared.computation.arithmetic

    @property
    def stand_ins(self) -> list[tuple[Tensor, Tensor]]:
        """The parameters that the inner optimizer does not update itself, with the tensors it updates instead."""
        return [(weight.parameter, weight.main) for weight in self._weights if weight.is_shadowed]

    @property
    def scale(self) -> float:
        """The factor by which the next loss is multiplied; with several losses, the first of them."""
        return self._shared.scaler.scale

    @property
    def scales(self) -> tuple[float, ...]:
        """The factor by which each loss is multiplied."""
        return tuple(scaler.scale for scaler in self._shared.scalers)

    @property
    def gradient_scale(self) -> float:
        """The factor that the gradients contain now: the scale, or 1 once they are unscaled."""
        return self._shared.gradient_scale if self._unscaled is None else 1.0

    @property
    def may_skip(self) -> bool:
        """Whether steps with non-finite gradients are skipped."""
        return self._shared.scaler.settings.may_skip

    @property
    def last_overflow(self) -> str | None:
        """The name of the first non-finite gradient of the last step, or None if it was not skipped."""
        return self._overflow

    @property
    def num_skips(self) -> int:
        """How many steps have been skipped, of all losses."""
        return sum(scaler.num_skips for scaler in self._shared.scalers)

    @property
    def extras(self) -> tuple[Removable, ...]:
        """Handles of what the recipe has added to the model: `CompressedActivations`, `FixedPointModel`."""
        return tuple(self._shared.extras)

    def report(self) -> str:
        """Describe in a few lines how the model trains."""
        return self._shared.report()

    def backward(self, loss: Tensor, *, loss_id: int = 0, **kwargs: Any) -> None:
        """Scale the loss and run its backward; the other arguments are those of `Tensor.backward`.

        `loss_id` says which of several losses it is, if `apply_recipe` was given their number.
        """
        if not 0 <= loss_id < len(self._shared.scalers):
            raise RecipeError.explain(
                f"There is no loss {loss_id}.",
                why=f"the recipe was applied for {len(self._shared.scalers)}, which are counted from 0.",
                fix=f"use apply_recipe(..., num_losses={max(loss_id, 0) + 1}).",
            )
        if self._unscaled is not None:
            raise RecipeError.explain(
                "backward() after unscale_() or clip_grad_norm_() would mix scaled and unscaled gradients.",
                fix="call every backward() of a step first, then clip, then step().",
            )
        self.announce(loss)
        self._shared.backward(loss, loss_id, **kwargs)

    def announce(self, loss: Tensor) -> None:
        """Announce the backward of an unscaled loss, for code that does not call `backward` of this optimizer."""
        self._shared.note_backward(loss)
        self._shared.weights.expect_gradients()

    def unscale_(self) -> None:
        """Divide the gradients by the loss scale now, to read or clip them; `step` will not do it again."""
        if self._unscaled is not None:
            return
        scaler = self._shared.scaler
        self._shared.weights.widen_gradients()
        having = with_gradient(self._weights)
        if having and scaler.scale != 1.0 and not self._shared.num_backwards:
            raise RecipeError.explain(
                "There are gradients, but backward() of this optimizer was not called.",
                why=f"the loss scale is {scaler.scale:g}, and loss.backward() does not apply it.",
                fix="call optimizer.backward(loss) instead of loss.backward().",
            )
        self._overflow = None
        if scaler.settings.may_skip:
            device = having[0].parameter.device if having else torch.device("cpu")
            self._overflow = agreed_overflow(first_nonfinite(having), device)
        if self._overflow is None:
            unscale(having, self._shared.gradient_scale)
        hand_over(self._weights)
        self._unscaled = having

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Unscale the gradients and clip their norm to at most `max_norm`; return the norm before clipping.

        In a step that will be skipped, nothing is clipped and the norm is infinite.
        """
        self.unscale_()
        if self._overflow is not None:
            return torch.tensor(float("inf"))
        parameters = [weight.parameter for weight in self._unscaled or ()]
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
        hand_over(self._weights)
        return norm

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Unscale the gradients unless that is done already; then step, or skip if one is not finite.

        A closure must call `backward` of this optimizer, may clip, and may be called several times. If its gradients
        overflow, the step is undone, and the closure's loss is returned.
        """
        self._shared.weights.take_over_changes(self._weights)
        if closure is not None:
            return self._step_with(closure)
        self.unscale_()
        result = None
        if self._overflow is None:
            hand_over(self._weights)
            result = self._step_inner()
            self._shared.weights.write_back(self._weights, self.inner.state)
        self._close_step()
        return result

    def _step_with(self, closure: Callable[[], Any]) -> Any:
        undo = StepUndo(self._weights, self.inner) if self._shared.scaler.settings.may_skip else None
        loss: Any = None

        def evaluate() -> Any:
            nonlocal loss
            with torch.enable_grad():
                self._shared.weights.write_back(self._weights, self.inner.state)
                self._unscaled = None
                loss = closure()
            self.unscale_()
            if self._overflow is not None:
                raise Overflowed
            return loss

        try:
            result = self._step_inner(evaluate)
        except Overflowed:
            assert undo is not None
            undo.restore()
            result = loss
        self._shared.weights.write_back(self._weights, self.inner.state)
        self._close_step()
        return result

    def _step_inner(self, *closure: Callable[[], Any]) -> Any:
        try:
            return self.inner.step(*(map(self._packed.outside, closure) if self._packed else closure))
        except RuntimeError as error:
            self._check_settings_fit(error)
            raise
        finally:
            if self._packed is not None:
                self._packed.end()

    def _check_settings_fit(self, error: RuntimeError) -> None:
        """Raise a clear error if torch failed because a setting, such as lr, is too large for the weights' dtype."""
        for group in self.inner.param_groups:
            dtype = min((p.dtype for p in group["params"]), key=lambda dtype: torch.finfo(dtype).max)
            largest = torch.finfo(dtype).max
            for name, value in group.items():
                if isinstance(value, float | int) and abs(value) > largest:
                    raise RecipeError.explain(
                        f"{name} = {value:g} is too large for the weights of recipe '{self.recipe.name}'.",
                        why=f"they are {str(dtype).removeprefix('torch.')}, whose largest number is {largest:g}.",
                        fix=f"use a smaller {name}, or a recipe with fp32 master weights, such as O2 or bf16-master.",
                    ) from error

    def _close_step(self) -> None:
        is_idle = not self._unscaled and not self._shared.num_backwards
        self._unscaled = None
        for weight in self._weights:
            weight.grad_version = -1  # the next gradient is another tensor with its own versions
        # After a skipped step, torch's schedulers would warn that the optimizer was never called.
        mark_as_stepped(self.inner)
        if not is_idle:  # a step without a backward says nothing about the loss scale
            self._shared.note_step(self._overflow)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the model and of its main weights."""
        for weight in self._weights:
            grad = weight.parameter.grad
            if set_to_none:
                weight.parameter.grad = None
                weight.main.grad = None
            elif grad is not None:
                grad.detach_().zero_()
        self._unscaled = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its parameters get main weights according to the recipe."""
        self.inner.add_param_group(param_group)
        self._adopt(self.inner.param_groups[-1], len(self.inner.param_groups) - 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state, and under one more key the loss scale and the state of the recipe.

        The inner optimizer can load it too, and this one can load a plain optimizer's. State that the recipe keeps
        packed is saved packed; for an optimizer without the recipe, use `plain_state_dict`.
        """
        return {**self.inner.state_dict(), _EXTRA: self._shared.state_dict()}

    def plain_state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state as it would be without the recipe: nothing is packed."""
        return expand_state_dict(self.inner.state_dict(), self.inner)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint of this recipe, of another recipe, or of a plain optimizer."""
        given = {key: value for key, value in state_dict.items() if key != _EXTRA}
        plain, packed = split_state_dict(given, self.inner, name=self._packed.name if self._packed else None)
        self.inner.load_state_dict(plain)
        if self._packed is not None:
            self._packed.take(packed)
        if _EXTRA in state_dict:
            self._shared.load_state_dict(state_dict[_EXTRA])

    def load_scaler_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the loss scale of a `torch.amp.GradScaler` or of apex's amp, from their `state_dict()`."""
        self._shared.scaler.load_state_dict(state_dict)

    def remember(self) -> StepMemory:
        """Return the state of the next step besides tensors: loss scale, counts, histories; see `repeating`."""
        return self._shared.remember()

    def recall(self, memory: StepMemory) -> None:
        """Return to an earlier state for good. The tensors must be restored already."""
        self._shared.recall(memory)

    def repeating(self, memory: StepMemory) -> AbstractContextManager[None]:
        """Return to an earlier state inside the block, to run that step again; afterwards the present state is back."""
        return self._shared.repeating(memory)

    def remember_gradients(self) -> tuple[list[Weight] | None, str | None]:
        """Return which gradients are unscaled, and the last overflow, for `recall_gradients`."""
        return None if self._unscaled is None else list(self._unscaled), self._overflow

    def recall_gradients(self, gradients: tuple[list[Weight] | None, str | None]) -> None:
        """Return to an earlier state; all gradients count as not copied."""
        self._unscaled, self._overflow = gradients
        for weight in self._weights:
            weight.grad_version = -1

    def remove(self) -> None:
        """Remove all hooks from the model; its weights stay as they are, and packed optimizer state becomes plain."""
        self._shared.remove()
        if self._packed is not None:
            self._packed.remove()
            self._packed = None

    def _adopt(self, group: dict[str, Any], place: int) -> None:
        """Put main weights into a group, in place because LBFGS holds the list, and move their state."""
        parameters: list[Tensor] = group["params"]
        for number, parameter in enumerate(parameters):
            weight = self._shared.weights.of(parameter, name=f"param_groups[{place}].params[{number}]")
            self._weights.append(weight)
            parameters[number] = weight.main
            if parameter in self.inner.state:
                state = self.inner.state.pop(parameter)
                self.inner.state[weight.main] = {
                    key: _like(value, weight.main) if key != "step" else value for key, value in state.items()
                }


def _like(value: Any, main: Tensor) -> Any:
    return value.to(main.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def check_optimizers(optimizers: Sequence[object]) -> None:
    """Raise unless all are torch optimizers without a recipe."""
    for optimizer in optimizers:
        if isinstance(optimizer, RecipeOptimizer):
            raise RecipeError.explain(
                f"Recipe '{optimizer.recipe.name}' is already applied to this optimizer.",
                fix="apply a recipe once; to change it, call remove() and create a new optimizer.",
            )
        if not isinstance(optimizer, Optimizer):
            raise RecipeError.explain(
                f"{type(optimizer).__name__} is not a torch.optim.Optimizer.",
                fix="pass one optimizer, or a list of them.",
            )
