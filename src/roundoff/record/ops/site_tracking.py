"""A dispatch mode that knows where in the model each op belongs: in forward, in backward and in the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.record.loop.follower import LoopFollower
from roundoff.record.loop.scaled_optimizer import as_scaled
from roundoff.record.loop.step_clock import Phase
from roundoff.record.source_lines import Sources
from roundoff.record.torch_private import (
    DispatchMode,
    WeakIdKeyDictionary,
    autograd_node,
    next_sequence_number,
)


class NameCodes:
    """Strings that rows hold as numbers."""

    def __init__(self, *values: str) -> None:
        self.values: list[str] = list(values)
        self._codes = {value: code for code, value in enumerate(values)}

    def code(self, value: str) -> int:
        """Return the number of a string, given it anew if it was not known."""
        known = self._codes.get(value)
        if known is None:
            known = self._codes[value] = len(self.values)
            self.values.append(value)
        return known


PLAIN = (Tensor, nn.Parameter)
_FROM_A_LEAF = 2**64 - 1
"""The sequence number of AccumulateGrad nodes."""


class SiteTrackingMode(DispatchMode):
    """Knows the site of every op; what to do with the op is up to who inherits from it.

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
        """Take the next autograd node for the first of a forward, in a loop that calls no module to say so."""
        self._first_of_forward = self._next_sequence_number()

    def begin_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn which parameter each gradient and piece of optimizer state belongs to, for the time of one step."""
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
        """Forget them: their identities may be used again."""
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
        """Notice that a loop of plain functions builds a graph again, and say whether its ops are of interest."""
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
        """Return the phase of the op that is passing through, after what it tells about a loop of plain functions."""
        clock = self._clock
        phase = clock.phase
        if phase is Phase.OPTIMIZER and clock.hears_functions and self._hears_forward():
            phase = clock.phase
        elif phase is Phase.EVAL and not self._stack and torch.is_grad_enabled():
            phase = clock.resume()
        return phase

    def _note_node(self) -> None:
        """Remember which site made the autograd node that was just created, for the time when it runs backward."""
        number = self._next_sequence_number() - 1
        if number not in self._nodes and (self._stack or not self._clock.in_backward):
            source = self._sources.here() if self._sources else -1
            self._nodes[number] = (self._stack[-1] if self._stack else 0, source)

    def _where(self, phase: Phase, args: Any) -> tuple[int, int, int]:
        """Return the site, parameter and source line of the op that is passing through."""
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
            return self._last_node  # the engine adds up what the node before has left
        number = node._sequence_nr()
        if number == _FROM_A_LEAF:
            variable = getattr(node, "variable", None)
            site, parameter = self._place_of(variable) if variable is not None else (0, -1)
            self._last_node = (site, parameter, -1)
        else:
            site, source = self._nodes.get(number) or self._older_nodes.get(number) or (0, -1)
            self._last_node = (site, -1, source)
            if torch.is_grad_enabled():  # this backward will be differentiated, too
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
            self.begin_optimizer(self._optimizer)  # its first step makes the state that it works on
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
