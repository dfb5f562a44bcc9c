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
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader

from roundoff.record.torch_private import (
    autograd_node,
    clip_module,
    engine_module,
    hidden_from_functions,
    in_function_transform,
    is_tracing,
    never_compiled,
)

OPTIMIZERS_OWN = ("optimizer_backward", "optimizer_unscale", "optimizer_clip")
"""Calls of methods that only optimizers with a loss scale of their own have."""


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

    def calling(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The loop begins one of the calls below, or `scaler_step`, a scaler's step."""

    def called(self, call: str, owner: Any, detail: dict[str, Any]) -> None:
        """The loop called zero_grad, unscale, clip, scheduler, train, eval, load, save, scale, update or compile."""

    def call_ended(self, call: str) -> None:
        """What `calling` announced has ended, or raised."""

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
        self._inside: set[str] = set()

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
        stack.enter_context(_replacing(*clip_module(), self._noting("clip", _clip_detail)))
        stack.enter_context(_replacing_function(torch.nn.utils.clip_grad_value_, self._noting("clip", _value_detail)))
        stack.enter_context(_replacing_function(torch.save, self._noting("save", _no_detail)))
        stack.enter_context(_replacing_function(torch.load, self._noting("read", _read_detail)))
        stack.enter_context(_replacing(torch, "compile", self._noting("compile", _no_detail)))
        # Not where a subclass overrides it: an override such as "train, but freeze the norms" is to be seen through.
        stack.enter_context(_replacing(nn.Module, "train", self._noting("train", _train_detail)))
        for owner, method, call, detail in _METHODS:
            for cls in _classes_with(owner, method):
                stack.enter_context(_replacing(cls, method, self._noting(call, detail)))
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

    def _noting(self, call: str, describe: Callable[..., dict[str, Any]]) -> Callable[[Any], Any]:
        """Make a wrapper that notes the outermost call of a method that may call itself (train, a super().step)."""

        def wrap(original: Any) -> Any:
            @functools.wraps(original)
            def noted(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling():
                    return original(*args, **kwargs)
                if call in self._inside or _only_forwards(args) or not self._observes():
                    return original(*args, **kwargs)
                if call == "clip" and args and isinstance(args[0], Iterator):
                    args = (list(args[0]), *args[1:])  # so that an observer can go through the parameters, too
                self._inside.add(call)
                self._tell(self._observer.calling, call, args, kwargs)
                try:
                    result = original(*args, **kwargs)
                finally:
                    self._inside.discard(call)
                    self._tell(self._observer.call_ended, call)
                self._tell(self._note, call, describe, args, kwargs, result)
                return result

            return noted

        return wrap

    def _note(self, call: str, describe: Callable[..., dict[str, Any]], args: Any, kwargs: Any, result: Any) -> None:
        detail = describe(result, *args, **kwargs)
        name = detail.pop("call", call)
        self._observer.called(name, args[0] if args else None, detail)

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


def _no_detail(result: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {}


def _clip_detail(
    result: Any, parameters: Any, max_norm: Any = None, total_norm: Any = None, *_: Any, **__: Any
) -> dict[str, Any]:
    return {"max_norm": float(max_norm), "total_norm": total_norm}


def _value_detail(result: Any, parameters: Any, clip_value: Any, *_: Any, **__: Any) -> dict[str, Any]:
    return {"max_value": float(clip_value)}


def _train_detail(result: Any, module: nn.Module, mode: bool = True) -> dict[str, Any]:
    return {"call": "train" if mode else "eval", "module": type(module).__name__}


def _load_detail(result: Any, owner: Any, state_dict: Any = (), *_: Any, **__: Any) -> dict[str, Any]:
    missing = list(getattr(result, "missing_keys", None) or ())
    unexpected = list(getattr(result, "unexpected_keys", None) or ())
    return {
        "into": type(owner).__name__,
        "num_missing": len(missing),
        "num_unexpected": len(unexpected),
        "missing": missing[:20],
        "unexpected": unexpected[:20],
        "num_keys": _num_keys(owner),
        "num_given": len(state_dict),
    }


def _num_keys(owner: Any) -> int:
    """Count what a state dict of a model has: parameters and the buffers that are saved; of an optimizer, its state."""
    if isinstance(owner, Optimizer):
        return len(owner.state)
    count = 0
    for module in owner.modules():
        count += sum(1 for x in module._parameters.values() if x is not None)
        saved = module._buffers.keys() - module._non_persistent_buffers_set
        count += sum(1 for name in saved if module._buffers[name] is not None)
    return count


def _read_detail(result: Any, *_: Any, **__: Any) -> dict[str, Any]:
    found = dict(_optimizer_states(result, "", depth=3))
    groups = [group for state in found.values() for group in state["param_groups"]]
    rates = {group.get(name) for group in groups for name in ("lr", "initial_lr")}
    return {
        "optimizer_states": list(found),
        "optimizer_rates": sorted(rate for rate in rates if isinstance(rate, (int, float))),
    }


def _optimizer_states(value: Any, place: str, *, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give where in what was read the state of an optimizer is: groups of parameters, and something about them."""
    if type(value) is not dict:
        return
    if "param_groups" in value and value.get("state"):
        yield place, value
    elif depth:
        for key, item in value.items():
            yield from _optimizer_states(item, str(key), depth=depth - 1)


def _scheduler_detail(result: Any, scheduler: Any, *_: Any, **__: Any) -> dict[str, Any]:
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", [])
    return {
        "scheduler": type(scheduler).__name__,
        "initial": bool(getattr(scheduler, "_is_initial", False)),
        "lr": [_as_number(group.get("lr")) for group in groups],
    }


def _optimizer_detail(result: Any, owner: Any, *_: Any, **__: Any) -> dict[str, Any]:
    return {"of": type(owner).__name__}


def _scale_detail(result: Any, scaler: Any, outputs: Any) -> dict[str, Any]:
    return {"outputs": outputs, "scaled": result}


def _as_number(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _epoch_detail(result: Any, loader: Any, *_: Any, **__: Any) -> dict[str, Any]:
    owner = loader if loader.batch_sampler is None else loader.batch_sampler
    sampler = getattr(owner, "sampler", None)
    return {
        "sampler": type(sampler).__name__,
        "replacement": bool(getattr(sampler, "replacement", False)),
        "num_samples": _length(loader.dataset),
        "num_batches": _length(loader),
        "batch_size": loader.batch_size,
        "set_epoch": getattr(sampler, "epoch", None),
        "shuffle": getattr(sampler, "shuffle", None),
    }


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


_METHODS: tuple[tuple[type, str, str, Callable[..., dict[str, Any]]], ...] = (
    (Optimizer, "zero_grad", "zero_grad", _optimizer_detail),
    (nn.Module, "zero_grad", "zero_grad", _optimizer_detail),
    (Optimizer, "load_state_dict", "load", _load_detail),
    (nn.Module, "load_state_dict", "load", _load_detail),
    (LRScheduler, "step", "scheduler", _scheduler_detail),
    (DataLoader, "__iter__", "epoch", _epoch_detail),
    (Optimizer, "backward", "optimizer_backward", _no_detail),
    (Optimizer, "unscale_", "optimizer_unscale", _no_detail),
    (Optimizer, "clip_grad_norm_", "optimizer_clip", _no_detail),
    (torch.amp.GradScaler, "scale", "scale", _scale_detail),
    (torch.amp.GradScaler, "unscale_", "unscale", _no_detail),
    (torch.amp.GradScaler, "update", "update", _no_detail),
)
