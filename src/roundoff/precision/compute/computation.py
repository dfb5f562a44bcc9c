"""The base class of all ways in which a model's forward can compute under a recipe."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from roundoff.precision.compute.sharded_weights import Action, Gathering
from roundoff.precision.recipe.recipe import Recipe
from roundoff.precision.recipe.site_formats import dtype_of


class InsideForward(threading.local):
    """Whether this thread is inside a model's forward, or inside a module that was called on its own."""

    def __init__(self) -> None:
        self.depth = 0
        self.owner: nn.Module | None = None
        self.num_calls = 0
        """Nested calls of the owner."""
        self.context: AbstractContextManager[Any] | None = None


class Reentry:
    """Hooks that enter the computation where a part of the model is called on its own.

    Inside the model's forward they do nothing.
    """

    def __init__(self, inside: InsideForward, computing: Callable[[], AbstractContextManager[Any]]) -> None:
        self._inside = inside
        self._computing = computing

    def before(self, module: nn.Module, args: Any) -> None:
        """Enter the computation, unless this thread is inside already."""
        inside = self._inside
        if inside.depth:
            inside.num_calls += inside.owner is module
            return
        context = self._computing()
        context.__enter__()
        inside.depth, inside.owner, inside.num_calls, inside.context = 1, module, 1, context

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """Leave the computation if this module entered it."""
        inside = self._inside
        if inside.owner is not module:
            return
        inside.num_calls -= 1
        if inside.num_calls == 0 and inside.context is not None:
            context = inside.context
            inside.depth, inside.owner, inside.context = 0, None, None
            context.__exit__(None, None, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Reentry:
        # A copied model computes in the same way, in the same threads.
        return self


class Computation:
    """Plain fp32: every hook does nothing. Subclasses override the hooks they need.

    `attach` changes the model, and `enclose` puts hooks around its forward: each call of the model then runs
    `enter_inputs`, its forward inside `computing`, and `leave_outputs`. `detach` removes all hooks and leaves the
    weights as they are.
    """

    arithmetic = "native"
    reenters = False
    """Whether modules that are called outside the model's forward must enter `computing` too."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._hooks: list[RemovableHandle] = []
        self._inside = InsideForward()
        self._on_gathered: dict[Tensor, list[Action]] = {}

    def attach(self, model: nn.Module) -> None:
        """Prepare the model: cast weights, and put hooks where formats change."""

    def enter_inputs(self, inputs: Any) -> Any:
        """Return the model's inputs, cast to the format that the recipe sets."""
        return cast_floats(inputs, self.recipe.inputs)

    def computing(self) -> AbstractContextManager[Any]:
        """Return the context in which the model's forward runs."""
        return contextlib.nullcontext()

    def leave_outputs(self, outputs: Any) -> Any:
        """Return the model's outputs, cast to the format that the recipe sets."""
        return cast_floats(outputs, self.recipe.outputs)

    def pause(self, paused: bool) -> None:
        """Keep `computing` from changing what FSDP2 does with weights in the middle of the model's forward."""

    def carry(self, before: Any, after: Any) -> None:
        """Transfer what is known about a module's inputs to the new tensors that FSDP2 has replaced them with."""

    def on_computed(self, parameter: Tensor, action: Action) -> None:
        """Apply `action` to the tensor that the model computes with: the parameter, or what FSDP2 gathers of it."""
        if isinstance(parameter, DTensor):
            self._on_gathered.setdefault(parameter, []).append(action)
        else:
            action(parameter)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that must survive between steps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""

    def recall(self, state: dict[str, Any]) -> None:
        """Return to an earlier state of this training and forget everything since."""
        self.load_state_dict(state)

    def enclose(self, model: nn.Module) -> None:
        """Put hooks around the model's forward.

        With `reenters`, its parts get hooks too: activation checkpointing calls them again in the backward pass, and
        some training loops call `model.features(x)`.
        """
        self.bracket(model, inputs=self.enter_inputs, around=self._computing_outermost, outputs=self.leave_outputs)
        self._hooks += Gathering(self._on_gathered, pause=self.pause, carry=self.carry).attach(model)
        if not self.reenters:
            return
        again = Reentry(self._inside, self.computing)
        for module in model.modules():
            if module is not model:
                self.keep(module.register_forward_pre_hook(again.before))
                self.keep(module.register_forward_hook(again.after, always_call=True))

    @contextlib.contextmanager
    def _computing_outermost(self) -> Iterator[None]:
        self._inside.depth += 1
        try:
            with self.computing():
                yield
        finally:
            self._inside.depth -= 1

    def bracket(
        self,
        module: nn.Module,
        *,
        inputs: Callable[[Any], Any],
        around: Callable[[], AbstractContextManager[Any]],
        outputs: Callable[[Any], Any],
    ) -> None:
        """Make a module's forward run on `inputs(args)`, inside `around()`, and return `outputs(result)`."""
        bracket = _Bracket(inputs, around, outputs)
        # `prepend` for the hook after the forward, so that the user's own hooks see the bracket's outputs.
        self._hooks.append(module.register_forward_pre_hook(bracket.before, with_kwargs=True))
        self._hooks.append(module.register_forward_hook(bracket.after, prepend=True, always_call=True))

    def keep(self, hook: RemovableHandle) -> None:
        """Remove this hook as well when the computation is detached."""
        self._hooks.append(hook)

    def detach(self) -> None:
        """Remove all hooks."""
        while self._hooks:
            self._hooks.pop().remove()


class _Bracket:
    """The two hooks around one module's forward. Calls may nest, and may run in several threads at once."""

    def __init__(
        self,
        inputs: Callable[[Any], Any],
        around: Callable[[], AbstractContextManager[Any]],
        outputs: Callable[[Any], Any],
    ) -> None:
        self._inputs = inputs
        self._around = around
        self._outputs = outputs
        self._open = _Open()

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        changed = self._inputs((args, kwargs))
        context = self._around()
        context.__enter__()
        self._open.contexts.append(context)
        return changed  # type: ignore[no-any-return]

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if self._open.contexts:
            self._open.contexts.pop().__exit__(None, None, None)
        # After an exception there is no output.
        return None if output is None else self._outputs(output)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Bracket:
        return _Bracket(self._inputs, self._around, self._outputs)


class _Open(threading.local):
    def __init__(self) -> None:
        self.contexts: list[AbstractContextManager[Any]] = []


def cast_floats(values: Any, fmt: str) -> Any:
    """Cast the float tensors in `values`, however deeply nested, to a format's dtype; `keep` casts nothing."""
    dtype = None if fmt == "keep" else dtype_of(fmt)
    if dtype is None:
        return values
    return map_floats(values, lambda x: x.to(dtype))


def map_floats(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to the float tensors in `values`: in tuples, lists, dicts and dataclasses, at any depth."""
    if isinstance(values, Tensor):
        return change(values) if values.is_floating_point() else values
    if isinstance(values, tuple):
        items = [map_floats(value, change) for value in values]
        return type(values)(*items) if hasattr(values, "_fields") else type(values)(items)
    if isinstance(values, list):
        return [map_floats(value, change) for value in values]
    if isinstance(values, dict):
        changed = copy.copy(values)
        for key, value in values.items():
            changed[key] = map_floats(value, change)
        return changed
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        altered = copy.copy(values)
        for field in dataclasses.fields(values):
            object.__setattr__(altered, field.name, map_floats(getattr(values, field.name), change))
        return altered
    return values
