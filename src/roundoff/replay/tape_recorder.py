"""Records what the loop's own code does in a step, at its top level, while it happens."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType, MethodType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.accelerator import torch_generators
from roundoff.record.loop.follower import is_in_training
from roundoff.record.loop.sites import LOOP
from roundoff.record.source_lines import call_from, frame_that_called, is_users_file, shown_path
from roundoff.replay.arguments import ArgumentNotes, Live, NotReplayable, Result, adopt_state, references, tensors_of
from roundoff.replay.lost_numbers import LostNumbersFinder
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
from roundoff.torch_private import (
    FunctionMode,
    hidden_from_modes,
    in_function_transform,
    is_eager,
    never_compiled,
    next_sequence_number,
    push_function_mode,
    remove_function_mode,
)
from roundoff.words import size_text

_READ_ONLY = frozenset({
    "backward", "item", "tolist", "numpy", "size", "stride", "dim", "ndimension", "numel", "nelement", "element_size",
    "storage", "untyped_storage", "data_ptr", "is_contiguous", "is_floating_point", "is_complex", "get_device",
    "storage_offset", "type", "_set_grad_enabled", "is_tensor", "is_storage", "equal", "allclose", "is_same_size",
    "__float__", "__int__", "__bool__", "__len__", "__repr__", "__format__", "__contains__", "__hash__", "__index__",
    "__array__", "__dlpack__", "__reduce_ex__", "__deepcopy__", "__setstate__", "has_names", "is_shared",
    "share_memory_", "is_pinned", "pin_memory", "get_default_dtype", "is_grad_enabled", "is_inference", "can_cast",
    "promote_types",
    "result_type", "finfo", "iinfo", "manual_seed", "seed", "get_rng_state", "set_rng_state", "save", "load",
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "send", "isend", "recv",
    "irecv",
})  # fmt: skip
"""Names of functions that compute no tensor of the step; what a rank receives in an empty one comes from outside."""
_ATTRIBUTES = frozenset({"grad", "T", "mT", "H", "mH", "data", "real", "imag"})
"""Names of attributes that are tensors."""
_READING_SCALARS = frozenset({"item", "__float__", "isnan", "isfinite", "isinf"})
_LOSSES = frozenset({"cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"})
_HAVE_A_DOMAIN = frozenset({
    "div", "div_", "divide", "true_divide", "__truediv__", "__rtruediv__", "__itruediv__", "reciprocal", "log", "log_",
    "log2", "log10", "log1p", "sqrt", "sqrt_", "rsqrt", "pow", "__pow__", "__rpow__", "std", "var", "std_mean", "mean",
    "acos", "asin", "acosh", "atanh", "logit", "exp", "softmax", "log_softmax",
})  # fmt: skip
"""Functions that may give NaN or infinity for finite arguments."""
_DRAW = frozenset({
    "randn", "randn_like", "rand", "rand_like", "normal", "normal_", "uniform_", "exponential_", "log_normal_",
    "cauchy_",
})  # fmt: skip
"""Functions whose numbers depend on a generator, and on nothing else."""
_ALIASING = frozenset({"__get__", "detach", "view", "reshape", "flatten", "t", "transpose", "__getitem__"})
"""Functions whose result shares memory with their argument: writing into it may write into a model."""
_DISPATCH_SECONDS = 2e-6
"""What torch needs to find out that a mode is on, and to call it."""
_MAX_FRAMES_OF_CALL = 17
"""At most this many frames above a hook, `functional_call` is looked for, which calls a module."""
_MAX_SECONDS = 2.0
"""A step whose taping takes longer than this is not taped to its end."""
_MAX_ENTRIES = 20_000
"""A step of more calls than this is not taped to its end."""


class TapeRecorder(FunctionMode):
    """Records what the loop does at its top level; inside models, backward and optimizers it is off the mode stack.

    Args:
        is_state: whether a tensor belongs to a model or an optimizer; such tensors are not copied, snapshots hold them.
        on_forward: called when plain functions build a graph after an optimizer has stepped: another step begins.
        max_bytes: the most memory that the copies of one step may take.
    """

    def __init__(
        self,
        *,
        is_state: Callable[[Tensor], bool],
        on_forward: Callable[[], None],
        max_bytes: int,
    ) -> None:
        super().__init__()
        self.step = StepTape(0)
        self.is_paused = False
        """Whether nothing is taped; plain functions are noticed only if they begin a step."""
        self.hears_forward = False
        """Whether a step may begin with a plain function, and must be noticed while the tape is paused."""
        self.hears_losses = False
        """Whether loss functions are to be noticed while the tape is paused."""
        self.seconds = 0.0
        """How much longer functions have taken because of the tape."""
        self.takes_notes = True
        """False where nothing is ever played again: functions are then only seen, not kept."""
        self._in_function = 0.0
        self.max_bytes = max_bytes
        self._num_entries = 0
        self._step_began_at = 0.0
        self._next_node = next_sequence_number()
        self._first_node = 0
        self._last_generators: tuple[Tensor, tuple[Tensor, ...]] | None = None
        self._is_between = True
        self._was_begun = False
        self.on_loss: Callable[[tuple[Any, ...], Any], None] | None = None
        """Called with the arguments and the result of every loss function that the loop calls."""
        self.on_scalar: Callable[[Any], None] | None = None
        """Called with every tensor that the loop reads as a number or checks for being finite."""
        self.on_loop_value: Callable[[str, tuple[Any, ...], Any], None] | None = None
        """Called with functions outside of any graph that may give NaN: their names, arguments and results."""
        self.on_draw: Callable[[str, Any], None] | None = None
        """Called with functions that draw random numbers: their names and results."""
        self.on_reshape: Callable[[Tensor, Tensor], None] | None = None
        """Called with what was reshaped outside of any graph, and the result."""
        self.follows_outputs = False
        """Whether `on_output` is to be called."""
        self.on_output: Callable[[str, tuple[Any, ...], dict[str, Any], Any], None] | None = None
        """Called with the name, arguments and result of every function that the loop calls."""
        self.lost_numbers: LostNumbersFinder | None = None
        """Looks at what the loop computes between steps, which no replay shows."""
        self._is_state = is_state
        self._notes = ArgumentNotes(is_state)
        self._open: list[list[TapeEntry]] = [self.step.entries]
        self._on_forward = on_forward
        self._is_on = False
        self._num_holds = 1
        self._num_running = 0
        self._kinds: dict[Any, _FunctionKind] = {}
        self._aliases: dict[int, ref[Tensor]] = {}
        self._users_files: dict[str, bool] = {}

    # -- on and off ----------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Stop recording functions until `release` was called as often as this."""
        self._num_holds += 1
        if self._is_on:
            self._turn()

    def release(self) -> None:
        """Record functions again."""
        self._num_holds = max(0, self._num_holds - 1)
        if not self._num_holds:
            self._turn()

    def pause(self, why: str) -> None:
        """Tape nothing until `resume`; the open step cannot be replayed."""
        self.is_paused = True
        self.step.why_not_replayable = why
        self._drop_entries()
        self._turn()

    def resume(self) -> None:
        """Tape again, from the beginning of a step."""
        self.is_paused = False
        self.step.why_not_replayable = None
        self._drop_entries()
        self._turn()

    def _drop_entries(self) -> None:
        self.step.entries.clear()
        self.step.num_generator_bytes = 0
        self._last_generators = None
        self._open = [self.step.entries]
        self._notes.forget()

    def _turn(self) -> None:
        """Put this mode onto the stack if functions are to be seen, and only then: every function costs more there."""
        is_heard = not self.is_paused or self.hears_losses or (self.hears_forward and self._is_between)
        is_wanted = is_heard and not self._num_holds
        if is_wanted != self._is_on and not self._num_running:
            (push_function_mode if is_wanted else remove_function_mode)(self)
            self._is_on = is_wanted

    @property
    def is_between(self) -> bool:
        """Whether no step is open: before the first, and after the optimizer has stepped until the next forward."""
        return self._is_between

    @is_between.setter
    def is_between(self, value: bool) -> None:
        self._is_between = value
        if self.is_paused and (self.hears_forward or self._is_on):
            self._turn()

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
        self._first_node = self._next_node()
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
        ended = self._with_notes()
        self._notes.new_step(ended.step)
        self._first_node = self._next_node()
        self.step = StepTape(step, why_not_replayable=ended.why_not_replayable if self.is_paused else None)
        self._open = [self.step.entries]
        self._num_entries = 0
        self._step_began_at = self.seconds
        self._last_generators = None
        self._aliases.clear()
        return ended

    def stay_paused(self, step: int) -> None:
        """Begin another step of which nothing will be taped, after one of which nothing was."""
        self.step.step = step
        self._step_began_at = self.seconds

    def so_far(self) -> StepTape:
        """Return the tape of the open step."""
        self.step.num_nodes = max(self._next_node() - self._first_node, 0)  # of this thread, which may be another one
        return self._with_notes()

    def failed(self, error: Exception) -> None:
        """Note an error of ours: the training continues, and the open step cannot be replayed."""
        text = str(error) if isinstance(error, NotReplayable) else f"{type(error).__name__}: {error}"
        self.step.why_not_replayable = text

    def _with_notes(self) -> StepTape:
        self.step.external = self._notes.external
        self.step.live = tuple(self._notes.live.values())
        self.step.reached_steps = frozenset(self._notes.reached_steps)
        return self.step

    @property
    def in_closure(self) -> bool:
        """Whether an optimizer's closure is running."""
        return len(self._open) > 1

    # -- calls that the watch reports ----------------------------------------------------------------------------------

    def model_enter(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> ModelEntry:
        """Record a call of a model."""
        if in_function_transform():
            raise NotReplayable("a transform of torch.func runs in it")
        note, generators = self._notes.note, self._generators()
        live = self._notes.note_live(module)
        call = ModelEntry(live, note(args), note(kwargs), Ambient.now(), generators, is_in_training(module))
        call.line = self.line()
        if _is_called_functionally():
            own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            call.replaced = note({name: x for name, x in own.items() if not self._is_state(x)})
        self._append(call)
        return call

    def _generators(self) -> Any:
        """Return the states of torch's generators, those of the call before if nothing was drawn since."""
        now = torch_generators()
        known = self._last_generators
        if known is not None and not now[1] and torch.equal(now[0], known[0]):
            return known
        self._last_generators = now
        self.step.num_generator_bytes += sum(state.numel() for state in (now[0], *now[1]))
        return now

    def model_leave(self, call: ModelEntry, output: Any) -> None:
        """Record what it returned."""
        call.num_results = self._notes.results(output)

    def backward(self, roots: Any, args: Any, kwargs: Any, *, loss: Tensor | None) -> None:
        """Record that the autograd engine was started."""
        note = self._notes.note
        self._append(BackwardEntry(note(tuple(roots)), note(args), kwargs, self.line(), loss))

    def loop_call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Record a call of the loop that a replay makes again unchanged."""
        called = Live(function) if isinstance(function, MethodType) else function
        self._append(LoopEntry(called, self._notes.note(args), self._notes.note(kwargs), self.line()))

    def step_enter(self, optimizer: Optimizer) -> StepEntry:
        """Record that an optimizer steps."""
        live = self._notes.note_live(optimizer)
        call = StepEntry(live, [_settings(group) for group in optimizer.param_groups], self.line())
        self._append(call)
        return call

    def note_raised(self, kind: type[ModelEntry] | type[BackwardEntry] | type[LoopEntry]) -> None:
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

    def _append(self, entry: TapeEntry) -> None:
        """Add an entry, unless the step has become too long to be taped at all."""
        self._open[-1].append(entry)
        self._num_entries += 1
        if self._num_entries > _MAX_ENTRIES:
            self.pause(f"it makes more than {_MAX_ENTRIES} calls")
        elif self._notes.num_bytes > self.max_bytes:
            self.pause(f"the tensors it uses take more than {size_text(self.max_bytes)}")
        elif self.seconds - self._step_began_at > _MAX_SECONDS:
            self.pause(f"taping it took more than {_MAX_SECONDS:g} s")

    # -- functions that torch reports ----------------------------------------------------------------------------------

    @never_compiled
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function unchanged, and record it if it computes something of the step."""
        self._num_running += 1  # torch takes the mode off its stack during this call and puts it back itself
        began = time.perf_counter()
        self._in_function = 0.0
        try:
            return self._run(func, args, kwargs)
        finally:
            self.seconds += time.perf_counter() - began - self._in_function + _DISPATCH_SECONDS
            self._num_running -= 1

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call the function itself; that time is the training's own."""
        caller = frame_that_called(func)
        began = time.perf_counter()
        try:
            return call_from(caller, func, args, kwargs)
        finally:
            self._in_function = time.perf_counter() - began

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not is_eager():
            if in_function_transform():  # its tensors are gone when it ends
                self.step.why_not_replayable = "a transform of torch.func runs in it"
            return func(*args, **kwargs) if kwargs else func(*args)
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _FunctionKind(func)
        if self._num_holds:
            return self._call(func, args, kwargs)
        if kind.reads_scalar:
            self._look(self.on_scalar, args[0])
        if not kind.computes:
            result = self._call(func, args, kwargs)
            if self.follows_outputs:
                self._look(self.on_output, kind.name, args, kwargs or {}, result)
            return result
        if self._is_between or not torch.is_grad_enabled():
            result = self._outside_of_the_graph(kind, func, args, kwargs)
        else:
            result = self._run_taken(func, args, kwargs)
        if kind.is_loss:
            self._look(self.on_loss, args, result)
        elif kind.draws and not self.is_paused:
            self._look(self.on_draw, kind.name, result)
        if self.follows_outputs:
            self._look(self.on_output, kind.name, args, kwargs or {}, result)
        return result

    def _run_taken(self, func: Any, args: Any, kwargs: Any) -> Any:
        noted = None if self.is_paused else self._before(func, args, kwargs)
        result = self._call(func, args, kwargs)
        if noted is not None and not self.is_paused:
            self._after(noted, args, result)
        return result

    def _outside_of_the_graph(self, kind: _FunctionKind, func: Any, args: Any, kwargs: Any) -> Any:
        """Record a function without gradients only where it writes into a model or begins a forward."""
        noted = None
        if kind.may_write and args and self._was_begun and not self.is_paused and self._is_part_of_state(args[0]):
            noted = self._before(func, args, kwargs)
        finder = self.lost_numbers
        if finder is not None and (self.is_paused or not finder.wants(kind.name)):
            finder = None
        wide = None if finder is None else finder.before(kind.name, args)
        result = self._call(func, args, kwargs)
        if kind.has_domain and not self.is_paused:
            self._look(self.on_loop_value, func.__name__, args, result)
        if kind.reshapes and not self.is_paused and isinstance(result, Tensor):
            self._look(self.on_reshape, args[0], result)
        if finder is not None:
            finder.after(func, args, kwargs or {}, result, wide, self._place)
        if noted is not None:
            self._after(noted, args, result)
            if kind.is_aliasing and isinstance(result, Tensor):
                self._aliases[id(result)] = ref(result)
        elif self._is_between and torch.is_grad_enabled() and _builds_graph(result):
            self._begin_with(func, args, kwargs, result)
        return result

    def _look(self, look: Callable[..., None] | None, *values: Any) -> None:
        if look is not None:
            try:
                with hidden_from_modes():
                    look(*values)
            except Exception as error:
                self.failed(error)

    def _begin_with(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Begin another step with a function, in a loop that calls no module.

        Before the first step, the function may also be part of building a model.
        """
        if self._was_begun:
            try:
                with hidden_from_modes():
                    self._on_forward()
            except Exception as error:
                self.failed(error)
        if self.is_paused:
            return
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
        if not self.takes_notes:
            return None
        try:
            with hidden_from_modes():
                note = self._notes.note
                return FunctionEntry(func, note(args), note(kwargs or {}), Ambient.now(), self.line())
        except Exception as error:
            self.failed(error)
            return None

    def _after(self, call: FunctionEntry, args: Any, result: Any) -> None:
        try:
            with hidden_from_modes():
                if next(tensors_of(result), None) is None and not _acts_on_its_tensor(call):
                    return
                call.num_results = self._notes.results(result)
                self._notes.note_written(args)
                self._append(call)
        except Exception as error:
            self.failed(error)

    def _place(self) -> tuple[str, str | None]:
        line = self.line()
        return LOOP, None if line is None else f"{shown_path(line[0])}:{line[1]}"

    def is_in_function(self) -> bool:
        """Return whether the innermost code of the user's that runs is that of a function, not of a file."""
        frame = self._users_frame()
        return frame is not None and frame.f_code.co_name != "<module>"

    def loop_line(self) -> tuple[str, int] | None:
        """Return the same as `line`; None in the code of a dataset, whose results are data."""
        frame = self._users_frame()
        is_data = frame is not None and frame.f_code.co_name == "__getitem__"
        return None if frame is None or is_data else (frame.f_code.co_filename, frame.f_lineno)

    def line(self) -> tuple[str, int] | None:
        """Return the innermost line of the running stack that belongs to the user."""
        frame = self._users_frame()
        return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)

    def _users_frame(self) -> FrameType | None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            filename = frame.f_code.co_filename
            is_users = self._users_files.get(filename)
            if is_users is None:
                is_users = self._users_files[filename] = is_users_file(filename)
            if is_users:
                return frame
            frame = frame.f_back
        return None


def _is_called_functionally() -> bool:
    """Return whether the module that is being called was given other tensors in place of its own."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES_OF_CALL):
        if frame is None:
            break
        if frame.f_code is torch.func.functional_call.__code__:
            return True
        frame = frame.f_back
    return False


class _FunctionKind:
    """What a torch function may do to a step; worked out once for each, since steps call many."""

    __slots__ = (
        "computes", "draws", "has_domain", "is_aliasing", "is_loss", "may_write", "name", "reads_scalar", "reshapes"
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        self.name = name = getattr(func, "__name__", "")
        self.computes = _computes(func)
        self.reads_scalar = name in _READING_SCALARS
        self.is_loss = is_loss_name(name)
        self.is_aliasing = name in _ALIASING
        self.has_domain = name in _HAVE_A_DOMAIN
        self.draws = name in _DRAW
        self.reshapes = name in ("view", "reshape")
        self.may_write = self.is_aliasing or name[-1:] == "_"


def is_loss_name(name: str) -> bool:
    """Return whether a torch function with this name computes a loss.

    >>> is_loss_name("mse_loss"), is_loss_name("softmax")
    (True, False)
    """
    return name in _LOSSES or name.endswith("_loss")


def _computes(func: Any) -> bool:
    """Return whether a function may compute a tensor of the step."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        return attribute in (_ATTRIBUTES if name == "__get__" else ("grad", "data", "requires_grad"))
    return name not in _READ_ONLY and not name.startswith("_record_function")


def _acts_on_its_tensor(call: FunctionEntry) -> bool:
    """Return whether a function that returns no tensor changes the one it is called with."""
    name = call.function.__name__
    if name in ("register_hook", "retain_grad"):  # on a parameter, the hook would outlive the replay
        return bool(call.args) and isinstance(call.args[0], Result)
    return name in ("__set__", "__setitem__")


def _builds_graph(result: Any) -> bool:
    """Return whether a backward can go through the result of a function."""
    with hidden_from_modes():
        return any(x.grad_fn is not None for x in tensors_of(result))


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.detach().clone() if isinstance(value, Tensor) else value
        for key, value in group.items()
        if key != "params"
    }
