"""Sees what a training loop does, without touching the script: forward, backward, steps, and the calls between."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Protocol
from weakref import ref

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

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
from roundoff.record.source_lines import call_from
from roundoff.torch_private import (
    autograd_node,
    clip_module,
    engine_module,
    global_hooks_check,
    global_module_hooks,
    has_compiled,
    hidden_from_functions,
    in_function_transform,
    is_jit_tracing,
    is_tracing,
    never_compiled,
    num_running_modules,
)


class FollowedModules(Enum):
    """Which modules an observer follows; hooks that are not needed would slow every module down."""

    ALL = "all"
    OUTERMOST = "those that the loop calls"
    FIRST = "the first one that the loop calls, until the next backward or optimizer step"


class LoopObserver(Protocol):
    """Called for everything that the loop does. No method may change anything that the training can see."""

    followed_modules: FollowedModules
    """May change while a module begins."""
    unannounced_calls: frozenset[LoopCallKind]
    """Calls that are reported only when they have succeeded, because no follower needs to know that they begin."""
    is_quiet: bool
    """Whether the `quiet_` methods are called first, which follow an ordinary step in a few microseconds. Where one
    returns False, the call is reported as usual."""
    is_undisturbed: bool
    """Set to False by every report through the other methods."""
    quiet_seconds: float
    """What the `quiet_` methods took; `took` is not called for them."""

    def quiet_forward(self, module: nn.Module) -> bool:
        """`module` is about to run; if True is returned, no module is followed until the next backward or step."""

    def quiet_backward(self, roots: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """The autograd engine starts from `roots`."""

    def quiet_backward_leave(self) -> bool:
        """The autograd engine has ended, or raised."""

    def quiet_step(self, optimizer: Optimizer) -> bool:
        """`optimizer.step` begins."""

    def quiet_step_leave(self, optimizer: Optimizer) -> bool:
        """`optimizer.step` has ended."""

    def quiet_zero_grad(self, owner: Any) -> bool:
        """Gradients were cleared."""

    def took(self, seconds: float) -> None:
        """One or more of the calls below took this long; the sum is the cost of observing."""

    def forward_enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """`module` is about to run."""

    def forward_leave(self, module: nn.Module, output: Any) -> None:
        """`module` has run, or raised (then `output` is None)."""

    def backward_enter(
        self, roots: tuple[Any, ...], *, is_part_of_forward: bool, arguments: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        """The autograd engine starts from `roots`; `is_part_of_forward` if its gradients will be differentiated."""

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
    """Report to `observer` what every loop of this process does inside the block; all hooks are removed after it."""
    watch = _LoopHooks(observer)
    with contextlib.ExitStack() as stack:
        stack.callback(watch.stop)
        watch.install(stack)
        yield


def is_observed() -> bool:
    """Return whether the loops of this process are being observed."""
    owner, name = engine_module()
    return bool(getattr(getattr(owner, name), "roundoff_observes", lambda: False)())


class _LoopHooks:
    """Hooks and patches that report each event to one observer once, and let none of its errors reach the training."""

    def __init__(self, observer: LoopObserver) -> None:
        self._observer = observer
        self._thread = threading.get_ident()
        self._node = autograd_node()
        self._active = True
        self._is_reporting = False
        self._compiles = False
        """Whether the script has called `torch.compile`."""
        self._inside: set[LoopCallKind] = set()
        self._module_hooks = self._make_module_hooks()
        self._hook_tables = [
            (table, handle.id, hook)
            for handle, hook in self._module_hooks
            if (table := handle.hooks_dict_ref()) is not None
        ]
        self._follows_modules = False
        """Whether the hooks of modules are in place."""
        self._outermost: RemovableHandle | None = None
        """The hook on the module that the loop called, while those inside it are not followed."""
        self._left_over: RemovableHandle | None = None
        """The same, of a module that raised: it could not be removed while torch iterated over its hooks."""

    def stop(self) -> None:
        self._active = False
        for handle in (*(handle for handle, _ in self._module_hooks), self._outermost, self._left_over):
            if handle is not None:
                handle.remove()

    def install(self, stack: contextlib.ExitStack) -> None:
        report = self._report
        on = self._observer
        self._set_module_hooks(on=True)

        @never_compiled
        def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if not (on.is_quiet and self._is_followed_quietly(on.quiet_step_leave, optimizer)):
                report(on.step_leave, optimizer)

        hooks = [
            register_optimizer_step_pre_hook(never_compiled(self._before_step)),
            register_optimizer_step_post_hook(after_step),
        ]
        for hook in hooks:
            stack.callback(hook.remove)
        _stop_in_children(self)
        stack.enter_context(_replacing(*global_hooks_check(), _seeing_no_hooks_of_ours))
        stack.enter_context(_replacing(*engine_module(), self._around_backward))
        stack.enter_context(_replacing(*clip_module(), self._around_call("clip", describe_norm_clipping)))
        stack.enter_context(
            _replacing_function(torch.nn.utils.clip_grad_value_, self._around_call("clip", describe_value_clipping))
        )
        stack.enter_context(_replacing_function(torch.save, self._around_call("save", describe_as("save"))))
        stack.enter_context(_replacing_function(torch.load, self._around_call("read", describe_reading)))
        stack.enter_context(_replacing(torch, "compile", self._around_call("compile", describe_as("compile"))))
        for compile_by_jit in (torch.jit.trace, torch.jit.script):
            stack.enter_context(
                _replacing_function(compile_by_jit, self._around_call("compile", describe_as("compile")))
            )
        # Not in a subclass that overrides it: an override such as "train, but freeze the norms" should still call ours.
        stack.enter_context(_replacing(nn.Module, "train", self._around_call("train", describe_mode)))
        for owner, method, kind, describe in _METHODS:
            for cls in _classes_with(owner, method):
                stack.enter_context(_replacing(cls, method, self._around_call(kind, describe)))
        for cls in _classes_with(torch.amp.GradScaler, "step"):
            stack.enter_context(_replacing(cls, "step", self._around_scaler_step))

    # -- modules -------------------------------------------------------------------------------------------------------

    def _make_module_hooks(self) -> list[tuple[RemovableHandle, Callable[..., None]]]:
        # A forward hook that returned a value would replace the module's output: these return None. Compiled models
        # trace their hooks, and there they must be nothing at all.
        def enter(module: nn.Module, args: Any) -> None:
            if torch.compiler.is_compiling():
                return
            on = self._observer
            if on.is_quiet and self._can_be_alone(module) and self._is_followed_quietly(on.quiet_forward, module):
                self._set_module_hooks(on=False)
            else:
                self._module_begins(module, args)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if not torch.compiler.is_compiling():
                self._report(self._observer.forward_leave, module, output)

        vars(enter)["is_roundoffs"] = vars(leave)["is_roundoffs"] = True
        return [
            (register_module_forward_pre_hook(enter), enter),
            (register_module_forward_hook(leave, always_call=True), leave),
        ]

    def _set_module_hooks(self, *, on: bool) -> None:
        """Put the hooks of modules into torch's tables, or take them out; registering them anew would take longer."""
        self._follows_modules = on
        for table, number, hook in self._hook_tables:
            if on:
                table[number] = hook
            else:
                table.pop(number, None)

    @never_compiled
    def _module_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._report(self._observer.forward_enter, module, args)
        followed = self._observer.followed_modules
        if followed is FollowedModules.ALL or not self._can_be_alone(module):
            return
        self._set_module_hooks(on=False)  # torch has already copied the list of hooks that it is about to call
        if followed is FollowedModules.OUTERMOST:
            self._hook_alone(module)

    def _can_be_alone(self, module: nn.Module) -> bool:
        """Return whether hooks may come and go: compiled code has guards on them, scripted modules have their own."""
        is_here = self._active and threading.get_ident() == self._thread
        return is_here and not self._compiles and not has_compiled() and not isinstance(module, torch.jit.ScriptModule)

    def _hook_alone(self, module: nn.Module) -> None:
        """Notice when a module ends, without hooks on the modules inside it: those then take torch's fast path."""
        error_before = sys.exc_info()[1]

        def leave(left: nn.Module, args: Any, output: Any) -> None:
            if left is not module or self._outermost is not handle:
                return  # a copy of the module that was made while it ran
            self._outermost = None
            if sys.exc_info()[1] is error_before:
                handle.remove()
            else:  # torch iterates over this dict while it handles an exception: the hook cannot be removed yet
                self._left_over = handle
            if self._active:
                self._set_module_hooks(on=True)
                self._report(self._observer.forward_leave, module, output)

        self._outermost = handle = nn.Module.register_forward_hook(module, leave, always_call=True)

    def _follow_modules_again(self) -> None:
        """Put the hooks of modules back if one ended without its hook being called, or only the first was followed."""
        if self._left_over is not None:
            self._left_over.remove()
            self._left_over = None
        if self._follows_modules or not self._active:
            return
        if self._outermost is not None:
            if num_running_modules():
                return  # this happens inside the module
            self._outermost.remove()
            self._outermost = None
        self._set_module_hooks(on=True)

    # -- optimizers ----------------------------------------------------------------------------------------------------

    @never_compiled
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if not self._follows_modules or self._left_over is not None:
            self._follow_modules_again()
        on = self._observer
        if not (on.is_quiet and self._is_followed_quietly(on.quiet_step, optimizer)):
            self._report(on.step_enter, optimizer)
        given = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(given) or not self._active:
            return None

        @functools.wraps(given)
        @never_compiled
        def closure(*args: Any, **kwargs: Any) -> Any:
            self._report(self._observer.closure_enter)
            try:
                return call_from(sys._getframe(1), given, args, kwargs)
            finally:
                self._report(self._observer.closure_leave)

        if len(args) > 1:
            return (args[0], closure, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure}

    def _observes(self) -> bool:
        """Return whether this process and thread are observed; the threads of the autograd engine are.

        Nothing is observed while torch.jit traces: our ops would become a part of the traced model.
        """
        if not self._active or is_jit_tracing():
            return False
        if threading.get_ident() == self._thread or self._node() is not None:
            return True
        self._observer.other_thread()
        return False

    @never_compiled
    def _is_followed_quietly(self, method: Callable[..., bool], *args: Any) -> bool:
        """Call a `quiet_` method of the observer, and return whether nothing else is to be done."""
        if not self._active or threading.get_ident() != self._thread or self._is_reporting or is_jit_tracing():
            return False
        began = time.perf_counter()
        self._is_reporting = True
        try:
            with hidden_from_functions():
                return method(*args)
        except Exception as error:
            self._active = False
            self._observer.failed(error)
            return True
        finally:
            self._is_reporting = False
            self._observer.quiet_seconds += time.perf_counter() - began

    @never_compiled
    def _report(self, method: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        # what `_observes` would say, nearly always: this is called often
        if not self._active or is_jit_tracing() or (threading.get_ident() != self._thread and not self._observes()):
            return
        is_outermost, self._is_reporting = not self._is_reporting, True
        self._observer.is_undisturbed = False
        began = time.perf_counter()
        try:
            with hidden_from_functions():
                method(*args, **kwargs)
        except Exception as error:
            self._active = False
            self._observer.failed(error)
        finally:
            if is_outermost:
                self._is_reporting = False
                self._observer.took(time.perf_counter() - began)

    def _around_call(self, kind: LoopCallKind, describe: Describe) -> Callable[[Any], Any]:
        """Make a wrapper that reports the outermost call of a method that may call itself (train, super().step)."""

        def wrap(original: Any) -> Any:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling():
                    return original(*args, **kwargs)
                caller = sys._getframe(1)
                if kind in self._inside or _only_forwards(args) or not self._observes():
                    return call_from(caller, original, args, kwargs)
                if kind == "clip" and args and isinstance(args[0], Iterator):
                    args = (
                        list(args[0]),
                        *args[1:],
                    )  # an iterator can be read once: the observer needs the parameters too
                self._inside.add(kind)
                self._compiles |= kind == "compile"
                is_announced = kind not in self._observer.unannounced_calls
                if is_announced:
                    self._report(self._observer.calling, kind, args, kwargs)
                try:
                    result = call_from(caller, original, args, kwargs)
                except BaseException:
                    self._inside.discard(kind)
                    if is_announced:
                        self._report(self._observer.call_ended, kind)
                    raise
                self._inside.discard(kind)
                on = self._observer
                is_zero_grad = kind == "zero_grad" and on.is_quiet and not is_announced and args
                if not (is_zero_grad and self._is_followed_quietly(on.quiet_zero_grad, args[0])):
                    self._report(self._note, kind, describe, is_announced, result, args, kwargs)
                return result

            return call

        return wrap

    def _note(
        self, kind: LoopCallKind, describe: Describe, is_announced: bool, result: Any, args: Any, kwargs: Any
    ) -> None:
        if is_announced:
            self._observer.call_ended(kind)
        self._observer.called(describe(result, *args, **kwargs))

    def _around_backward(self, original: Any) -> Any:
        @functools.wraps(original)
        @never_compiled
        def run(roots: Any, *args: Any, **kwargs: Any) -> Any:
            if is_tracing():
                return original(roots, *args, **kwargs)
            on = self._observer
            if (not self._follows_modules or self._left_over is not None) and self._node() is None:
                self._follow_modules_again()  # not inside of a backward: some solvers run thousands there
            if not (on.is_quiet and self._is_followed_quietly(on.quiet_backward, roots, kwargs)):
                builds_graph = len(args) > 2 and bool(args[2]) and not kwargs.get("accumulate_grad", True)
                self._report(
                    on.backward_enter,
                    tuple(roots),
                    is_part_of_forward=builds_graph and not in_function_transform(),
                    arguments=(args, kwargs),
                )
            try:
                return call_from(sys._getframe(1), original, (roots, *args), kwargs)
            finally:
                if not (on.is_quiet and self._is_followed_quietly(on.quiet_backward_leave)):
                    self._report(on.backward_leave)

        run.roundoff_observes = lambda: self._active  # type: ignore[attr-defined]
        return run

    def _around_scaler_step(self, original: Any) -> Any:
        @functools.wraps(original)
        @never_compiled
        def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if "scaler_step" in self._inside or not isinstance(optimizer, Optimizer) or not self._observes():
                return call_from(sys._getframe(1), original, (scaler, optimizer, *args), kwargs)
            self._inside.add("scaler_step")
            stepped = False

            def note(*_: Any) -> None:
                nonlocal stepped
                stepped = True

            hook = optimizer.register_step_pre_hook(note)
            self._report(self._observer.calling, "scaler_step", (scaler, optimizer, *args), kwargs)
            try:
                result = call_from(sys._getframe(1), original, (scaler, optimizer, *args), kwargs)
            finally:
                self._inside.discard("scaler_step")
                hook.remove()
                self._report(self._observer.call_ended, "scaler_step")
            if not stepped:
                self._report(self._observer.step_skipped, optimizer)
            return result

        return step


def _stop_in_children(hooks: _LoopHooks) -> None:
    """Have processes that are forked from this one observe nothing."""
    itself = ref(hooks)

    def stop_in_child() -> None:
        if (found := itself()) is not None:
            found._active = False

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=stop_in_child)


@contextlib.contextmanager
def _replacing(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    original = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    ours = wrap(original)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        # Code that has wrapped our wrapper keeps it; from now on it does nothing.
        if getattr(owner, name) is ours:
            setattr(owner, name, original)


@contextlib.contextmanager
def _replacing_function(function: Any, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a function by one wrapper in the modules that define and export it, so that it can still be pickled."""
    ours = wrap(function)
    offered = sys.modules[function.__module__.rpartition(".")[0]]
    with (
        _replacing(sys.modules[function.__module__], function.__name__, lambda _: ours),
        _replacing(offered, function.__name__, lambda _: ours),
    ):
        yield


def _seeing_no_hooks_of_ours(original: Any) -> Any:
    """Wrap torch's check for global hooks on modules, so that it sees only those of others.

    A compiled model warns about such hooks, because they also run for its wrapper. Ours allow for that, and the filters
    for warnings belong to the script.
    """

    @functools.wraps(original)
    def has_any_global_hook() -> bool:
        return any(not hasattr(hook, "is_roundoffs") for hooks in global_module_hooks() for hook in hooks.values())

    return has_any_global_hook


def _classes_with(owner: type[Any], method: str) -> list[type[Any]]:
    """Return `owner` and its subclasses that define the method themselves."""
    found = [owner] if method in vars(owner) else []
    for sub in owner.__subclasses__():
        found.extend(cls for cls in _classes_with(sub, method) if cls not in found)
    return found


def _only_forwards(args: tuple[Any, ...]) -> bool:
    """Return whether the call is to an optimizer that wraps another, as Accelerate's do, and may not pass it on."""
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
