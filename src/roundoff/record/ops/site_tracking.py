"""A dispatch mode that knows where in the model each op belongs, and the switch that pushes and removes it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.record.loop.follower import LoopFollower
from roundoff.record.loop.loss_scale import as_scaled
from roundoff.record.loop.step_clock import Phase
from roundoff.record.source_lines import Sources
from roundoff.torch_private import (
    DispatchMode,
    WeakIdKeyDictionary,
    autograd_node,
    compiler_is_loaded,
    correct_mode_keys,
    in_compiled_code,
    is_innermost,
    next_sequence_number,
    push_mode,
    remove_mode,
    sequence_number_of,
)


class NameCodes:
    """Strings that rows hold as numbers."""

    def __init__(self, *values: str) -> None:
        self.values: list[str] = list(values)
        self._codes = {value: code for code, value in enumerate(values)}

    def code(self, value: str) -> int:
        """Return the number of a string; a new string gets the next number."""
        known = self._codes.get(value)
        if known is None:
            known = self._codes[value] = len(self.values)
            self.values.append(value)
        return known


PLAIN = (Tensor, nn.Parameter)
_FROM_A_LEAF = 2**64 - 1
"""The sequence number of AccumulateGrad nodes."""


class SiteTrackingMode(DispatchMode):
    """Knows the site of every op; subclasses decide what to do with the op.

    In forward it is the innermost running module; each op also notes the number of the autograd node just made, so that
    in backward the running node's number leads to the same site. In the optimizer it is the owner of the parameter.
    """

    def __init__(self, follower: LoopFollower, *, sources: Sources | None = None) -> None:
        super().__init__()
        self.parameters = NameCodes()
        self.paused = False
        self._follower = follower
        self._sites = follower.sites
        self._clock = follower.clock
        self._stack = follower.modules.sites
        self._sources = sources
        self._nodes: dict[int, tuple[int, int]] = {}
        self._older_nodes: dict[int, tuple[int, int]] = {}
        self._last_node: tuple[int, int, int] = (0, -1, -1)
        self._optimizer: torch.optim.Optimizer | None = None
        self._of_parameter: dict[int, tuple[int, int]] = {}
        self._of_temporary = WeakIdKeyDictionary()
        self._current: tuple[int, int] = (0, -1)
        self._next_sequence_number = next_sequence_number()
        self._first_of_forward = 0
        self._node = autograd_node()

    # -- what the loop does --------------------------------------------------------------------------------------------

    def await_forward(self) -> None:
        """Treat the next autograd node as the first of a forward, in a loop that calls no modules."""
        self._first_of_forward = self._next_sequence_number()

    def begin_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn which parameter each gradient and piece of optimizer state belongs to, until the step ends."""
        self._optimizer = optimizer
        self._of_parameter = {}
        scaled = as_scaled(optimizer)
        for parameter, stand_in in () if scaled is None else scaled.stand_ins:
            self._sites.add_stand_in(stand_in, parameter)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                place = self._place_of(parameter)
                self._of_parameter[id(parameter)] = place
                if parameter.grad is not None:
                    self._of_parameter[id(parameter.grad)] = place
                for state in optimizer.state.get(parameter, {}).values():
                    if isinstance(state, Tensor):
                        self._of_parameter[id(state)] = place

    def learn_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Learn which parameter each gradient belongs to, for clipping and the like between backward and step."""
        self._of_parameter = {id(p.grad): self._place_of(p) for p in parameters if p.grad is not None}

    def end_optimizer(self) -> None:
        """Forget them: another object may get the same id."""
        self._optimizer = None
        self._of_parameter = {}
        self._of_temporary = WeakIdKeyDictionary()
        self._current = (0, -1)

    def forget_older_nodes(self) -> None:
        """Forget which sites made the autograd nodes of the step before the one that ended."""
        self._older_nodes, self._nodes = self._nodes, {}
        self._current = (0, -1)

    # -- where an op belongs -------------------------------------------------------------------------------------------

    def _hears_forward(self) -> bool:
        """Notice that a loop of plain functions builds a graph again; return whether its ops are wanted."""
        clock = self._clock
        if not clock.hears_functions or clock.phase is not Phase.OPTIMIZER or clock.in_step:
            return False
        if self._next_sequence_number() <= self._first_of_forward or not torch.is_grad_enabled():
            return False
        try:
            self._follower.function_forward()
        except Exception as error:
            self._follower.failed(error)
        return not self.paused

    def _phase(self) -> Phase:
        """Return the phase of the running op; in a loop of plain functions, the op itself may begin it."""
        clock = self._clock
        phase = clock.phase
        if phase is Phase.OPTIMIZER and clock.hears_functions and self._hears_forward():
            phase = clock.phase
        elif phase is Phase.EVAL and not self._stack and torch.is_grad_enabled():
            phase = clock.resume()
        return phase

    def _note_node(self) -> None:
        """Remember which site made the newest autograd node: its backward belongs to that site."""
        number = self._next_sequence_number() - 1
        if number not in self._nodes and (self._stack or not self._clock.in_backward):
            source = self._sources.here() if self._sources else -1
            self._nodes[number] = (self._stack[-1] if self._stack else 0, source)

    def _where(self, phase: Phase, args: Any) -> tuple[int, int, int]:
        """Return the site, parameter and source line of the running op."""
        if phase is Phase.BACKWARD and not self._stack:
            return self._where_backward()
        self._note_node()
        source = self._sources.here() if self._sources else -1
        if phase is Phase.OPTIMIZER and not self._stack:
            return (*self._where_optimizer(args), source)
        return (self._stack[-1] if self._stack else 0), -1, source

    def _where_backward(self) -> tuple[int, int, int]:
        node = self._node()
        if node is None:
            return self._last_node  # the engine sums gradients between nodes: that belongs to the node before
        number = sequence_number_of(node)
        if number == _FROM_A_LEAF:
            variable = getattr(node, "variable", None)
            site, parameter = self._place_of(variable) if variable is not None else (0, -1)
            self._last_node = (site, parameter, -1)
        else:
            site, source = self._nodes.get(number) or self._older_nodes.get(number) or (0, -1)
            self._last_node = (site, -1, source)
            if torch.is_grad_enabled():  # with create_graph, the ops of a backward make nodes too
                self._nodes.setdefault(self._next_sequence_number() - 1, (site, source))
        return self._last_node

    def _where_optimizer(self, args: Any) -> tuple[int, int]:
        known = self._of_parameter
        for arg in args:
            if type(arg) in PLAIN and (place := known.get(id(arg))) is not None:
                self._current = place
                return place
        return self._current if self._clock.in_step else (0, -1)

    def _of_list_entry(self, entries: Sequence[Any], index: int, x: Tensor) -> tuple[int, int]:
        """Return the place of one tensor of a foreach op: that of the argument it was made from."""
        entry = entries[index] if index < len(entries) else x
        place: tuple[int, int] | None = self._of_parameter.get(id(entry)) or self._of_temporary.get(entry)
        if place is None and self._optimizer is not None:
            self.begin_optimizer(self._optimizer)  # the first step of an optimizer creates its state
            self._optimizer = None
            place = self._of_parameter.get(id(entry))
        if place is None:
            return 0, -1
        if x is not entry:
            self._of_temporary[x] = place
        return place

    def _place_of(self, parameter: Tensor) -> tuple[int, int]:
        site, name = self._sites.of_parameter(parameter)
        return site, -1 if name is None else self.parameters.code(name)


class ModeSwitch:
    """Turns a recorder on and off; while it is on, compiled code runs eagerly.

    When compiled code ends, torch restores the dispatch keys that it found when it began. So inside compiled code, a
    mode can be pushed only until that code ends, and only a mode that was pushed there can be removed.
    """

    def __init__(self, recorder: SiteTrackingMode) -> None:
        self.is_on = False
        self._recorder = recorder
        self._stance = contextlib.ExitStack()
        self._is_listening = self._is_awaiting = False
        self._is_pushed = self._is_pushed_inside = self._is_eager = False

    @property
    def can_record(self) -> bool:
        """Whether ops can be recorded from now on; compiled code that has begun cannot be made to run eagerly."""
        return self.is_on or self._is_eager or not in_compiled_code()

    def turn(self, *, on: bool, listening: bool) -> None:
        """Start or stop recording ops; with `listening` the recorder stays pushed, to notice when a forward begins."""
        self.is_on = on
        self._recorder.paused = not on
        self._is_listening = listening
        self._is_awaiting = False
        self.place()

    def await_step(self, *, is_wanted: bool) -> None:
        """Prepare for a step that may begin with the next forward: compiled code would show no ops."""
        self._is_awaiting = is_wanted
        self.place()

    def place(self) -> None:
        """Push or remove the recorder as decided, as far as that is possible now."""
        if self.is_on or self._is_listening or self._is_awaiting:
            self._run_eagerly()
            if self._is_pushed:
                correct_mode_keys()
            elif self.is_on or not in_compiled_code():
                self._is_pushed_inside = in_compiled_code()
                push_mode(self._recorder)
                self._is_pushed = True
            return
        if self._is_pushed and (self._is_pushed_inside or not in_compiled_code()):
            self._is_pushed = not remove_mode(self._recorder)
        if not self._is_pushed:
            self._stance.close()
            self._is_eager = False

    def place_innermost(self) -> None:
        """Do the same, and move below modes that were pushed later, so that it sees the ops as those leave them."""
        self.place()
        if not self._is_pushed or in_compiled_code() or is_innermost(self._recorder):
            return
        if remove_mode(self._recorder):
            push_mode(self._recorder)

    def _run_eagerly(self) -> None:
        """Make compiled code run eagerly while the recorder is on, without loading the compiler if nothing uses it."""
        if not self._is_eager and compiler_is_loaded():
            self._stance.enter_context(torch.compiler.set_stance("force_eager"))
            self._is_eager = True
