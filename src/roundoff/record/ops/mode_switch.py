"""Puts a mode between torch and its ops and takes it away again, as far as compiled code allows."""

from __future__ import annotations

import contextlib

import torch

from roundoff.record.ops.site_tracking import SiteTrackingMode
from roundoff.record.torch_private import (
    compiler_is_loaded,
    correct_mode_keys,
    in_compiled_code,
    is_innermost,
    push_mode,
    remove_mode,
)


class ModeSwitch:
    """Turns a recorder on and off; compiled code runs eagerly as long as it is there.

    When compiled code ends, torch restores the keys by which modes are found as they were when it began: inside it
    a mode can be put on for the time being, but only one that was put on there can be taken off.
    """

    def __init__(self, recorder: SiteTrackingMode) -> None:
        self.is_on = False
        self._recorder = recorder
        self._stance = contextlib.ExitStack()
        self._is_listening = self._is_awaiting = False
        self._is_pushed = self._is_pushed_inside = self._is_eager = False

    @property
    def can_record(self) -> bool:
        """Whether ops can be recorded from now on; code that runs compiled can no longer be made to run eagerly."""
        return self.is_on or self._is_eager or not in_compiled_code()

    def turn(self, *, on: bool, listening: bool) -> None:
        """Record ops or stop recording them; a recorder that is only listening is there and records nothing."""
        self.is_on = on
        self._recorder.paused = not on
        self._is_listening = listening
        self._is_awaiting = False
        self.place()

    def await_step(self, *, is_wanted: bool) -> None:
        """Get ready for a step that may begin with the next forward: compiled, it would show nothing."""
        self._is_awaiting = is_wanted
        self.place()

    def place(self) -> None:
        """Do what was decided, as far as it can be done now."""
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
        """Do the same, and go behind modes that came later: they see what this one makes of the ops."""
        self.place()
        if not self._is_pushed or in_compiled_code() or is_innermost(self._recorder):
            return
        if remove_mode(self._recorder):
            push_mode(self._recorder)

    def _run_eagerly(self) -> None:
        """Have compiled code run eagerly as long as the recorder is on; the compiler is not loaded for nothing."""
        if not self._is_eager and compiler_is_loaded():
            self._stance.enter_context(torch.compiler.set_stance("force_eager"))
            self._is_eager = True
