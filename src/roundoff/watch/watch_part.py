"""The parts of a watch, each within a boundary of its own: one that fails is off, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from roundoff.runs import Failure, Gap, RunWriter, append_gap
from roundoff.torch_private import hidden_from_modes, is_hidden_from_modes

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class WatchPart:
    """Does the work of one part of a watch, unseen by the user's modes, until it fails for the first time.

    The failure is written into the run, and one line on stderr says what is no longer watched.

    Args:
        name: what the part does, for the user: "replays", "checks of losses and gradients".
        writer: of the run.
        step: returns the step that is open.
        on_failure: called with the reason when the part goes off.
    """

    def __init__(
        self,
        name: str,
        writer: RunWriter,
        *,
        step: Callable[[], int],
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self.is_on = True
        self._name = name
        self._writer = writer
        self._step = step
        self._on_failure = on_failure

    def __call__(self, work: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs) -> _Result | None:
        """Do some work of the part and return its result; None if the part is off, or goes off by it."""
        if not self.is_on:
            return None
        try:
            if is_hidden_from_modes():  # as in most hooks, and this is called often
                return work(*args, **kwargs)
            with hidden_from_modes():
                return work(*args, **kwargs)
        except Exception as error:
            self._turn_off(error)
            return None

    def do_hidden(self, work: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs) -> _Result | None:
        """Do the same where no mode sees what runs."""
        if not self.is_on:
            return None
        try:
            return work(*args, **kwargs)
        except Exception as error:
            self._turn_off(error)
            return None

    def _turn_off(self, error: Exception) -> None:
        self.is_on = False
        failure = Failure.of(error, check="part", name=self._name, step=self._step())
        self._writer.write(failure)
        self._writer.flush()  # if the part failed because nothing can be written, the writer says that instead
        if self._writer.stopped is None:  # otherwise the writer has said so
            self._writer.say(
                f"{self._name} are off from step {self._step()} on; the training goes on. Why: {failure.error}"
            )
        if self._on_failure is not None:
            self._on_failure(failure.error)
        else:
            gap = Gap(kind="part", what=self._name, step=self._step(), why=failure.error, rank=self._writer.rank)
            append_gap(self._writer.folder, gap)
