"""The base class of all ways in which a model's forward can compute under a recipe."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from roundoff import torch_private
from roundoff.precision.compute.sharded_weights import Action, Gathering, as_sharded
from roundoff.precision.recipe.recipe import Recipe
from roundoff.precision.recipe.site_formats import dtype_of


class OpenCalls(threading.local):
    """What this thread has entered around calls of a model and of its parts, and has not left yet.

    Torch runs no hooks when Ctrl-C or `sys.exit` ends a forward: what was entered then stays open, in a notebook for as
    long as that runs. It is left at the next call, and a `ForwardMode` does nothing until then.
    """

    def __init__(self) -> None:
        self._entered: list[tuple[object, FrameType | None, AbstractContextManager[Any]]] = []

    def __bool__(self) -> bool:
        return bool(self._entered)

    def enter(self, owner: object, context: AbstractContextManager[Any]) -> None:
        """Enter a context for the call whose hook calls this; the owner leaves it."""
        context.__enter__()
        frame = None if torch.compiler.is_compiling() else sys._getframe(2)
        self._entered.append((owner, frame, context))

    def leave(self, owner: object) -> None:
        """Leave the context that was entered last, if it is the owner's."""
        if self._entered and self._entered[-1][0] is owner:
            self._entered.pop()[2].__exit__(None, None, None)

    def leave_ended(self) -> None:
        """Leave the contexts of calls that have ended without running their hooks."""
        while self._entered and self.has_ended():
            self._entered.pop()[2].__exit__(None, None, None)

    def has_ended(self) -> bool:
        """Return whether the innermost call has ended: whether this call is not made from inside it."""
        ended = self._entered[-1][1] if self._entered else None
        if ended is None or torch.compiler.is_compiling():
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not ended:
            frame = frame.f_back
        return frame is None


class ForwardMode(TorchFunctionMode):
    """A mode that is on inside a model's forward only."""

    def __init__(self, calls: OpenCalls) -> None:
        super().__init__()
        self._open_calls = calls


class _Reentry:
    """Hooks that enter the computation where a part of the model is called on its own.

    Inside the model's forward they enter nothing, nor in what torch.compile traces: that is a whole forward.
    """

    def __init__(self, calls: OpenCalls, computing: Callable[[], AbstractContextManager[Any]]) -> None:
        self._calls = calls
        self._computing = computing

    def before(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._calls.leave_ended()
        self._calls.enter(module, contextlib.nullcontext() if self._calls else self._computing())

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self._calls.leave(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Reentry:
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
    is_traceable = True
    """Whether torch.compile can trace `computing`; otherwise a compiled model runs eagerly."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._hooks: list[RemovableHandle] = []
        self.calls = OpenCalls()
        """Of this model, whose forwards the computation is around."""
        self._on_gathered: dict[Tensor, list[Action]] = {}
        self._eager: list[nn.Module] = []

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
        if as_sharded(parameter) is not None:
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
        self.bracket(model, inputs=self.enter_inputs, around=self.computing, outputs=self.leave_outputs)
        if not self.is_traceable:
            model.forward = _Eagerly(model.forward)
            self._eager.append(model)
        self._hooks += Gathering(self._on_gathered, pause=self.pause, carry=self.carry).attach(model)
        if not self.reenters:
            return
        again = _Reentry(self.calls, self.computing)
        for module in model.modules():
            if module is not model:
                # Around what a site enters, which changes what the computation has set.
                self.keep(module.register_forward_pre_hook(again.before, prepend=True))
                self.keep(module.register_forward_hook(again.after, always_call=True))

    def bracket(
        self,
        module: nn.Module,
        *,
        inputs: Callable[[Any], Any] = lambda values: values,
        around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        outputs: Callable[[Any], Any] = lambda values: values,
    ) -> None:
        """Make a module's forward run on `inputs(args)`, inside `around()`, and return `outputs(result)`."""
        bracket = _Bracket(self.calls, inputs, around, outputs)
        # `prepend` for the hook after the forward, so that the user's own hooks see the bracket's outputs.
        self.keep(module.register_forward_pre_hook(bracket.before, with_kwargs=True))
        self.keep(module.register_forward_hook(bracket.after, prepend=True, always_call=True))

    def keep(self, hook: RemovableHandle) -> None:
        """Remove this hook as well when the computation is detached."""
        self._hooks.append(hook)

    def detach(self) -> None:
        """Remove all hooks."""
        self.calls.leave_ended()
        while self._hooks:
            self._hooks.pop().remove()
        while self._eager:
            del self._eager.pop().forward


class _Eagerly:
    """A function that torch.compile does not trace, with what it calls; a copy of its model calls the copy's."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch_private.compiler_is_loaded():
            return torch.compiler.disable(self._function)(*args, **kwargs)
        return self._function(*args, **kwargs)


class _Bracket:
    """The two hooks around one module's forward. Calls may nest, and may run in several threads at once."""

    def __init__(
        self,
        calls: OpenCalls,
        inputs: Callable[[Any], Any],
        around: Callable[[], AbstractContextManager[Any]],
        outputs: Callable[[Any], Any],
    ) -> None:
        self._calls = calls
        self._inputs = inputs
        self._around = around
        self._outputs = outputs

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        self._calls.leave_ended()
        changed = self._inputs((args, kwargs))
        self._calls.enter(self, self._around())
        return changed  # type: ignore[no-any-return]

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        self._calls.leave(self)
        # After an exception there is no output.
        return None if output is None else self._outputs(output)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Bracket:
        return _Bracket(self._calls, self._inputs, self._around, self._outputs)


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
