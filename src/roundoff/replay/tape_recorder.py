"""Records what the loop's own code does in a step, at its top level, while it happens."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.source_lines import is_users_file
from roundoff.record.torch_private import (
    FunctionMode,
    hidden_from_functions,
    never_compiled,
    push_function_mode,
    remove_function_mode,
)
from roundoff.replay.arguments import ArgumentNotes, Result, adopt_state, references, tensors_of
from roundoff.replay.generators import torch_generators
from roundoff.replay.step_tape import (
    Ambient,
    BackwardEntry,
    FunctionEntry,
    LoopEntry,
    ModelEntry,
    StepEntry,
    StepTape,
    TapeEntry,
    number_results,
)

_READ_ONLY = frozenset({
    "backward", "item", "tolist", "numpy", "size", "stride", "dim", "ndimension", "numel", "nelement", "element_size",
    "storage", "untyped_storage", "data_ptr", "is_contiguous", "is_floating_point", "is_complex", "get_device",
    "storage_offset", "type", "_set_grad_enabled", "is_tensor", "is_storage", "equal", "allclose", "is_same_size",
    "__float__", "__int__", "__bool__", "__len__", "__repr__", "__format__", "__contains__", "__hash__", "__index__",
    "__array__", "__dlpack__", "__reduce_ex__", "__deepcopy__", "__setstate__", "has_names", "is_shared",
    "share_memory_", "is_pinned", "pin_memory", "get_default_dtype", "is_grad_enabled", "is_inference", "can_cast",
    "promote_types",
    "result_type", "finfo", "iinfo", "manual_seed", "seed", "get_rng_state", "set_rng_state", "save", "load",
})  # fmt: skip
"""Names of functions that compute no tensor of the step."""
_ATTRIBUTES = frozenset({"grad", "T", "mT", "H", "mH", "data", "real", "imag"})
"""Names of attributes that are tensors."""
_READING_SCALARS = frozenset({"item", "__float__", "isnan", "isfinite", "isinf"})
_LOSSES = frozenset({"cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"})
_ALIASING = frozenset({"__get__", "detach", "view", "reshape", "flatten", "t", "transpose", "__getitem__"})
"""Functions whose result shares memory with their argument: writing into it may write into a model."""


class TapeRecorder(FunctionMode):
    """Records what the loop does at its top level; inside models, backward and optimizers it is off the mode stack.

    Args:
        is_state: whether a tensor belongs to a model or an optimizer; such tensors are not copied, snapshots hold them.
        on_forward: called when plain functions build a graph after an optimizer has stepped: another step begins.
        on_error: called with an error of ours; the training continues, and the step is not replayable.
    """

    def __init__(
        self,
        *,
        is_state: Callable[[Tensor], bool],
        on_forward: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        super().__init__()
        self.step = StepTape(0)
        self.is_between = True
        """Whether no step is open: before the first, and after the optimizer has stepped until the next forward."""
        self._was_begun = False
        self.on_loss: Callable[[tuple[Any, ...], Any], None] | None = None
        """Called with the arguments and the result of every loss function that the loop calls."""
        self.on_scalar: Callable[[Any], None] | None = None
        """Called with every tensor that the loop reads as a number or checks for being finite."""
        self._is_state = is_state
        self._notes = ArgumentNotes(is_state)
        self._open: list[list[TapeEntry]] = [self.step.entries]
        self._on_forward = on_forward
        self._on_error = on_error
        self._is_on = False
        self._num_holds = 1
        self._num_running = 0
        self._takes: dict[Any, bool] = {}
        self._aliases: dict[int, ref[Tensor]] = {}
        self._users_files: dict[str, bool] = {}

    # -- on and off ----------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Stop recording functions until `release` was called as often as this."""
        self._num_holds += 1
        if self._is_on and not self._num_running:
            remove_function_mode(self)
            self._is_on = False

    def release(self) -> None:
        """Record functions again."""
        self._num_holds = max(0, self._num_holds - 1)
        if not self._num_holds and not self._is_on and not self._num_running:
            push_function_mode(self)
            self._is_on = True

    def begin(self) -> None:
        """Note that a step begins, from the state as it is now."""
        self.is_between = False
        if not self._was_begun:
            self._was_begun = True
            self.begin_again()

    def begin_again(self) -> bool:
        """Drop from the first step what came before now, such as building a model; False if it is a part of the step.

        Only functions that built a graph which is still alive are kept: a backward may go through it.
        """
        known = self._notes.now_state()
        for entry in self.step.entries:
            if isinstance(entry, FunctionEntry):
                entry.args, entry.kwargs = adopt_state(entry.args, known), adopt_state(entry.kwargs, known)
        needed = self._notes.live_graphs()
        kept: list[tuple[FunctionEntry, range]] = []
        for entry, numbers in reversed(number_results(self.step.entries)):
            if needed.isdisjoint(numbers):
                continue
            if not isinstance(entry, FunctionEntry):
                return False
            kept.append((entry, numbers))
            needed.update(x.number for x in references([entry.args, entry.kwargs]) if isinstance(x, Result))
        kept.reverse()
        new_numbers = {old: new for new, old in enumerate(old for _, numbers in kept for old in numbers)}
        self.step.entries[:] = [entry for entry, _ in kept]
        self._notes.keep_only(new_numbers, [(entry.args, entry.kwargs) for entry, _ in kept])
        return True

    def new_step(self, step: int) -> StepTape:
        """Begin another step and return the tape of the previous one."""
        ended = self.so_far()
        self._notes.new_step(ended.step)
        self.step = StepTape(step)
        self._open = [self.step.entries]
        self._aliases.clear()
        return ended

    def so_far(self) -> StepTape:
        """Return the tape of the open step."""
        self.step.external = self._notes.external
        self.step.reached_steps = frozenset(self._notes.reached_steps)
        return self.step

    @property
    def in_closure(self) -> bool:
        """Whether an optimizer's closure is running."""
        return len(self._open) > 1

    # -- calls that the watch reports ----------------------------------------------------------------------------------

    def model_enter(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> ModelEntry:
        """Record a call of a model."""
        call = ModelEntry(
            module, self._notes.note(args), self._notes.note(kwargs), Ambient.now(), torch_generators(), module.training
        )
        call.line = self._line()
        self._open[-1].append(call)
        return call

    def model_leave(self, call: ModelEntry, output: Any) -> None:
        """Record what it returned."""
        call.num_results = self._notes.results(output)

    def backward(self, roots: Any, args: Any, kwargs: Any, *, loss: Tensor | None) -> None:
        """Record that the autograd engine was started."""
        note = self._notes.note
        self._open[-1].append(BackwardEntry(note(tuple(roots)), note(args), kwargs, self._line(), loss))

    def loop_call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Record a call of the loop that a replay makes again unchanged."""
        self._open[-1].append(LoopEntry(function, self._notes.note(args), self._notes.note(kwargs), self._line()))

    def step_enter(self, optimizer: Optimizer) -> StepEntry:
        """Record that an optimizer steps."""
        call = StepEntry(optimizer, [_settings(group) for group in optimizer.param_groups], self._line())
        self._open[-1].append(call)
        return call

    def raised(self, kind: type[ModelEntry] | type[BackwardEntry] | type[LoopEntry]) -> None:
        """Record that the last call of a kind raised an exception, which the loop may catch."""
        entry = next((entry for entry in reversed(self._open[-1]) if isinstance(entry, kind)), None)
        if entry is not None:
            entry.raised = True

    def closure_enter(self, call: StepEntry) -> None:
        """Record that the optimizer called its closure."""
        call.closures.append([])
        self._open.append(call.closures[-1])

    def closure_leave(self) -> None:
        """Record that the closure has ended."""
        if len(self._open) > 1:
            self._open.pop()

    # -- functions that torch reports ----------------------------------------------------------------------------------

    @never_compiled
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function unchanged, and record it if it computes something of the step."""
        self._num_running += 1  # torch takes the mode off its stack during this call and puts it back itself
        try:
            return self._run(func, args, kwargs)
        finally:
            self._num_running -= 1

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        takes = self._takes.get(func)
        if takes is None:
            takes = self._takes[func] = _computes(func)
        if not takes or self._num_holds:
            result = func(*args, **kwargs) if kwargs else func(*args)
            if not self._num_holds and func.__name__ in _READING_SCALARS:
                self._look(self.on_scalar, args[0])
            return result
        if func.__name__ in _READING_SCALARS:
            self._look(self.on_scalar, args[0])
        elif is_loss_name(func.__name__):
            result = self._run_taken(func, args, kwargs)
            self._look(self.on_loss, args, result)
            return result
        return self._run_taken(func, args, kwargs)

    def _run_taken(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.is_between or not torch.is_grad_enabled():
            return self._outside_of_the_graph(func, args, kwargs)
        noted = self._before(func, args, kwargs)
        result = func(*args, **kwargs) if kwargs else func(*args)
        if noted is not None:
            self._after(noted, args, result)
        return result

    def _outside_of_the_graph(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Record a function without gradients only where it writes into a model or begins a forward."""
        name = func.__name__
        noted = None
        if args and self._was_begun and (name[-1:] == "_" or name in _ALIASING) and self._is_part_of_state(args[0]):
            noted = self._before(func, args, kwargs)
        result = func(*args, **kwargs) if kwargs else func(*args)
        if noted is not None:
            self._after(noted, args, result)
            if name in _ALIASING and isinstance(result, Tensor):
                self._aliases[id(result)] = ref(result)
        elif self.is_between and torch.is_grad_enabled() and _builds_graph(result):
            self._begin_with(func, args, kwargs, result)
        return result

    def _look(self, look: Callable[..., None] | None, *values: Any) -> None:
        if look is not None:
            try:
                with hidden_from_functions():
                    look(*values)
            except Exception as error:
                self._on_error(error)

    def _begin_with(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Begin another step with a function, in a loop that calls no module.

        Before the first step, the function may also be part of building a model.
        """
        if self._was_begun:
            try:
                with hidden_from_functions():
                    self._on_forward()
            except Exception as error:
                self._on_error(error)
        noted = self._before(func, args, kwargs)
        if noted is not None:
            self._after(noted, args, result)

    def _is_part_of_state(self, target: Any) -> bool:
        first = target[0] if isinstance(target, (list, tuple)) and target else target
        if not isinstance(first, Tensor):
            return False
        if isinstance(first, nn.Parameter) or self._is_state(first):
            return True
        alias = self._aliases.get(id(first))
        return alias is not None and alias() is first

    def _before(self, func: Any, args: Any, kwargs: Any) -> FunctionEntry | None:
        try:
            with hidden_from_functions():
                note = self._notes.note
                return FunctionEntry(func, note(args), note(kwargs or {}), Ambient.now(), self._line())
        except Exception as error:
            self._on_error(error)
            return None

    def _after(self, call: FunctionEntry, args: Any, result: Any) -> None:
        try:
            with hidden_from_functions():
                if next(tensors_of(result), None) is None and not _acts_on_its_tensor(call):
                    return
                call.num_results = self._notes.results(result)
                self._notes.written(args)
                self._open[-1].append(call)
        except Exception as error:
            self._on_error(error)

    def _line(self) -> tuple[str, int] | None:
        """Return the innermost line of the running stack that belongs to the user."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            filename = frame.f_code.co_filename
            is_users = self._users_files.get(filename)
            if is_users is None:
                is_users = self._users_files[filename] = is_users_file(filename)
            if is_users:
                return filename, frame.f_lineno
            frame = frame.f_back
        return None


def is_loss_name(name: str) -> bool:
    """Say whether a torch function with this name computes a loss.

    >>> is_loss_name("mse_loss"), is_loss_name("softmax")
    (True, False)
    """
    return name in _LOSSES or name.endswith("_loss")


def _computes(func: Any) -> bool:
    """Say whether a function may compute a tensor of the step."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        return attribute in (_ATTRIBUTES if name == "__get__" else ("grad", "data", "requires_grad"))
    return name not in _READ_ONLY and not name.startswith("_record_function")


def _acts_on_its_tensor(call: FunctionEntry) -> bool:
    """Say whether a function that returns no tensor changes the one it is called with."""
    name = call.function.__name__
    if name in ("register_hook", "retain_grad"):  # on a parameter, the hook would outlive the replay
        return bool(call.args) and isinstance(call.args[0], Result)
    return name in ("__set__", "__setitem__")


def _builds_graph(result: Any) -> bool:
    """Say whether a backward can go through the result of a function."""
    return any(x.grad_fn is not None for x in tensors_of(result))


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.detach().clone() if isinstance(value, Tensor) else value
        for key, value in group.items()
        if key != "params"
    }
