"""Sees what a training loop does, without touching the script: forward, backward, steps, and the calls between."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader

from roundoff.record.loop.calls import (
    Describe,
    LoopCall,
    LoopCallKind,
    describe_as,
    describe_epoch,
    describe_loading,
    describe_mode,
    describe_norm_clipping,
    describe_reading,
    describe_scaling,
    describe_scheduler,
    describe_value_clipping,
    describe_zero_grad,
)
from roundoff.record.torch_private import (
    autograd_node,
    clip_module,
    engine_module,
    hidden_from_functions,
    in_function_transform,
    is_tracing,
    never_compiled,
)


class LoopObserver(Protocol):
    """Who wants to know what the loop does. None of these may change anything the training can see."""

    def forward_enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """`module` is about to run."""

    def forward_leave(self, module: nn.Module, output: Any) -> None:
        """`module` has run, or raised (then `output` is None)."""

    def backward_enter(
        self, roots: tuple[Any, ...], *, is_part_of_forward: bool, arguments: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        """The autograd engine starts from `roots`; `is_part_of_forward` if what it gives will be differentiated."""

    def backward_leave(self) -> None:
        """The autograd engine has ended, or raised."""

    def step_enter(self, optimizer: Optimizer) -> None:
        """`optimizer.step` begins."""

    def closure_enter(self) -> None:
        """`optimizer.step` calls the closure it was given."""

    def closure_leave(self) -> None:
        """The closure has ended, or raised."""

    def step_leave(self, optimizer: Optimizer) -> None:
        """`optimizer.step` has ended."""

    def step_skipped(self, optimizer: Optimizer) -> None:
        """A scaler decided not to step."""

    def calling(self, kind: LoopCallKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The loop begins a call other than of a model, backward or an optimizer's step."""

    def call_ended(self, kind: LoopCallKind) -> None:
        """What `calling` announced has ended, or raised."""

    def called(self, call: LoopCall) -> None:
        """The call has ended well; not reported for `scaler_step`."""

    def failed(self, error: Exception) -> None:
        """One of the above raised: observing must end, the training must not."""

    def other_thread(self) -> None:
        """Something happened in a thread that is not observed."""


@contextlib.contextmanager
def observing_loop(observer: LoopObserver) -> Iterator[None]:
    """Tell `observer` what every loop of this process does inside the block; nothing is left behind after it."""
    watch = _LoopHooks(observer)
    with contextlib.ExitStack() as stack:
        stack.callback(watch.stop)
        watch.install(stack)
        yield


def is_observed() -> bool:
    """Say whether somebody observes the loops of this process already."""
    owner, name = engine_module()
    return bool(getattr(getattr(owner, name), "roundoff_observes", lambda: False)())


class _LoopHooks:
    """Hooks and patches that pass on to one observer, once each, and never let its errors out."""

    def __init__(self, observer: LoopObserver) -> None:
        self._observer = observer
        self._process = os.getpid()
        self._thread = threading.get_ident()
        self._node = autograd_node()
        self._active = True
        self._inside: set[LoopCallKind] = set()

    def stop(self) -> None:
        self._active = False

    def install(self, stack: contextlib.ExitStack) -> None:
        tell = self._tell
        on = self._observer
        # A forward hook that returned a value would replace the module's output: these return None. Compiled models
        # trace their hooks, and there they must be nothing at all.
        hooks = [
            register_module_forward_pre_hook(
                lambda module, args: None if torch.compiler.is_compiling() else tell(on.forward_enter, module, args)
            ),
            register_module_forward_hook(
                lambda module, args, output: (
                    None if torch.compiler.is_compiling() else tell(on.forward_leave, module, output)
                ),
                always_call=True,
            ),
            register_optimizer_step_pre_hook(never_compiled(self._before_step)),
            register_optimizer_step_post_hook(
                never_compiled(lambda optimizer, args, kwargs: tell(on.step_leave, optimizer))
            ),
        ]
        for hook in hooks:
            stack.callback(hook.remove)
        stack.enter_context(_silencing_warning("Using `torch.compile.module.` when there are global hooks"))
        stack.enter_context(_replacing(*engine_module(), self._around_backward))
        stack.enter_context(_replacing(*clip_module(), self._noting("clip", describe_norm_clipping)))
        stack.enter_context(
            _replacing_function(torch.nn.utils.clip_grad_value_, self._noting("clip", describe_value_clipping))
        )
        stack.enter_context(_replacing_function(torch.save, self._noting("save", describe_as("save"))))
        stack.enter_context(_replacing_function(torch.load, self._noting("read", describe_reading)))
        stack.enter_context(_replacing(torch, "compile", self._noting("compile", describe_as("compile"))))
        # Not where a subclass overrides it: an override such as "train, but freeze the norms" is to be seen through.
        stack.enter_context(_replacing(nn.Module, "train", self._noting("train", describe_mode)))
        for owner, method, kind, describe in _METHODS:
            for cls in _classes_with(owner, method):
                stack.enter_context(_replacing(cls, method, self._noting(kind, describe)))
        for cls in _classes_with(torch.amp.GradScaler, "step"):
            stack.enter_context(_replacing(cls, "step", self._around_scaler_step))

    @never_compiled
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        self._tell(self._observer.step_enter, optimizer)
        given = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(given) or not self._active:
            return None

        @functools.wraps(given)
        @never_compiled
        def closure(*args: Any, **kwargs: Any) -> Any:
            self._tell(self._observer.closure_enter)
            try:
                return given(*args, **kwargs)
            finally:
                self._tell(self._observer.closure_leave)

        if len(args) > 1:
            return (args[0], closure, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure}

    def _observes(self) -> bool:
        """Say whether this is the process and the thread to observe; the autograd engine's threads belong to it."""
        if not self._active or os.getpid() != self._process:
            return False
        if threading.get_ident() == self._thread or self._node() is not None:
            return True
        self._observer.other_thread()
        return False

    @never_compiled
    def _tell(self, method: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if not self._observes():
            return
        try:
            with hidden_from_functions():
                method(*args, **kwargs)
        except Exception as error:
            self._active = False
            self._observer.failed(error)

    def _noting(self, kind: LoopCallKind, describe: Describe) -> Callable[[Any], Any]:
        """Make a wrapper that notes the outermost call of a method that may call itself (train, a super().step)."""

        def wrap(original: Any) -> Any:
            @functools.wraps(original)
            def noted(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling():
                    return original(*args, **kwargs)
                if kind in self._inside or _only_forwards(args) or not self._observes():
                    return original(*args, **kwargs)
                if kind == "clip" and args and isinstance(args[0], Iterator):
                    args = (list(args[0]), *args[1:])  # so that an observer can go through the parameters, too
                self._inside.add(kind)
                self._tell(self._observer.calling, kind, args, kwargs)
                try:
                    result = original(*args, **kwargs)
                finally:
                    self._inside.discard(kind)
                    self._tell(self._observer.call_ended, kind)
                self._tell(self._note, describe, result, args, kwargs)
                return result

            return noted

        return wrap

    def _note(self, describe: Describe, result: Any, args: Any, kwargs: Any) -> None:
        self._observer.called(describe(result, *args, **kwargs))

    def _around_backward(self, original: Any) -> Any:
        @functools.wraps(original)
        @never_compiled
        def run(roots: Any, *args: Any, **kwargs: Any) -> Any:
            if is_tracing():
                return original(roots, *args, **kwargs)
            builds_graph = len(args) > 2 and bool(args[2]) and not kwargs.get("accumulate_grad", True)
            is_part_of_forward = builds_graph and not in_function_transform()
            self._tell(
                self._observer.backward_enter,
                tuple(roots),
                is_part_of_forward=is_part_of_forward,
                arguments=(args, kwargs),
            )
            try:
                return original(roots, *args, **kwargs)
            finally:
                self._tell(self._observer.backward_leave)

        run.roundoff_observes = lambda: self._active  # type: ignore[attr-defined]
        return run

    def _around_scaler_step(self, original: Any) -> Any:
        @functools.wraps(original)
        @never_compiled
        def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if "scaler_step" in self._inside or not isinstance(optimizer, Optimizer) or not self._observes():
                return original(scaler, optimizer, *args, **kwargs)
            self._inside.add("scaler_step")
            stepped = False

            def note(*_: Any) -> None:
                nonlocal stepped
                stepped = True

            hook = optimizer.register_step_pre_hook(note)
            self._tell(self._observer.calling, "scaler_step", (scaler, optimizer, *args), kwargs)
            try:
                result = original(scaler, optimizer, *args, **kwargs)
            finally:
                self._inside.discard("scaler_step")
                hook.remove()
                self._tell(self._observer.call_ended, "scaler_step")
            if not stepped:
                self._tell(self._observer.step_skipped, optimizer)
            return result

        return step


@contextlib.contextmanager
def _replacing(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    original = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    ours = wrap(original)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        # Somebody who wrapped our wrapper keeps it; it does nothing any more.
        if getattr(owner, name) is ours:
            setattr(owner, name, original)


@contextlib.contextmanager
def _replacing_function(function: Any, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a function where it is defined and where it is offered, by one wrapper: it can still be pickled."""
    ours = wrap(function)
    offered = sys.modules[function.__module__.rpartition(".")[0]]
    with (
        _replacing(sys.modules[function.__module__], function.__name__, lambda _: ours),
        _replacing(offered, function.__name__, lambda _: ours),
    ):
        yield


@contextlib.contextmanager
def _silencing_warning(message: str) -> Iterator[None]:
    """Keep torch from telling the user about hooks that are ours."""
    before = list(warnings.filters)
    warnings.filterwarnings("ignore", message=message)
    ours = warnings.filters[0]
    is_inside_another = ours in before  # which still needs it when this block has ended
    try:
        yield
    finally:
        if ours in warnings.filters and not is_inside_another:
            warnings.filters.remove(ours)  # type: ignore[attr-defined]


def _classes_with(owner: type[Any], method: str) -> list[type[Any]]:
    """Return `owner` and its subclasses that define the method themselves."""
    found = [owner] if method in vars(owner) else []
    for sub in owner.__subclasses__():
        found.extend(cls for cls in _classes_with(sub, method) if cls not in found)
    return found


def _only_forwards(args: tuple[Any, ...]) -> bool:
    """Say whether a call goes to an optimizer that wraps another, as Accelerate's do, and may not pass it on."""
    owner = args[0] if args else None
    return isinstance(owner, Optimizer) and isinstance(getattr(owner, "optimizer", None), Optimizer)


_METHODS: tuple[tuple[type, str, LoopCallKind, Describe], ...] = (
    (Optimizer, "zero_grad", "zero_grad", describe_zero_grad),
    (nn.Module, "zero_grad", "zero_grad", describe_zero_grad),
    (Optimizer, "load_state_dict", "load", describe_loading),
    (nn.Module, "load_state_dict", "load", describe_loading),
    (LRScheduler, "step", "scheduler", describe_scheduler),
    (DataLoader, "__iter__", "epoch", describe_epoch),
    (Optimizer, "backward", "optimizer_backward", describe_as("optimizer_backward")),
    (Optimizer, "unscale_", "optimizer_unscale", describe_as("optimizer_unscale")),
    (Optimizer, "clip_grad_norm_", "optimizer_clip", describe_as("optimizer_clip")),
    (torch.amp.GradScaler, "scale", "scale", describe_scaling),
    (torch.amp.GradScaler, "unscale_", "unscale", describe_as("unscale")),
    (torch.amp.GradScaler, "update", "update", describe_as("update")),
)
