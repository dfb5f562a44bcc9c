"""Measures one step of any training: what rounding each of its tensors would do to the loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from roundoff.errors import SensitivityError
from roundoff.formats import format_named
from roundoff.record.loop import observing_loop
from roundoff.sensitivity.sensitivity import Sensitivity
from roundoff.sensitivity.step_measurement import StepMeasurement


class Measured:
    """What was measured, when it was."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.sensitivities: list[Sensitivity] = []
        """One for each step that was asked for, as they come."""
        self.num_steps = 0
        """How many steps the loop has taken."""
        self.failure: str | None = None
        """Why measuring ended before its time."""
        self._steps = steps

    @property
    def sensitivity(self) -> Sensitivity:
        """The first step that was measured.

        Raises:
            SensitivityError: none was.
        """
        if self.sensitivities:
            return self.sensitivities[0]
        taken = "1 step" if self.num_steps == 1 else f"{self.num_steps} steps"
        raise SensitivityError.explain(
            f"Step {self._steps[0]} was not measured.",
            why=f"{self.failure or f'the loop took {taken}'}.",
            fix=None if self.failure else "train for longer, or measure an earlier step: steps count from 0.",
        )


@contextlib.contextmanager
def measuring_sensitivity(
    *,
    step: int | Sequence[int] = 2,
    formats: Sequence[str] = ("fp16", "bf16", "e4m3"),
    on_done: Callable[[Sensitivity], None] | None = None,
) -> Iterator[Measured]:
    """Follow the trainings of this process inside the block, and measure one step; no number of it changes.

    Every call that a recipe would round if its site took a narrow format is made again with rounded operands and a
    rounded result: the error that this introduces, times the gradient of the result, is what it moves the loss by.
    Beside that it is noted what rounding does to the values and to the gradient. The training must compute in fp32.
    The measured step takes many times as long as another, and its compiled parts run eagerly.

    >>> import torch
    >>> model = torch.nn.Linear(4, 1)
    >>> with measuring_sensitivity(step=0, formats=["bf16"]) as measured:
    ...     model(torch.ones(2, 4)).sum().backward()
    >>> [(effect.site, effect.op, effect.part) for effect in measured.sensitivity.effects][:3]
    [('<model>', 'linear', 'input'), ('<model>', 'linear', 'weight'), ('<model>', 'linear', 'result')]

    Args:
        step: Which step, from 0; or several, which are kept apart. The first ones may tell little: what starts at zero
            has not moved.
        formats: The formats to try, by name.
        on_done: Called with each result as soon as the step has closed. A `SystemExit` that it raises ends the script.

    Raises:
        FormatError: there is no such format.
    """
    steps = [step] if isinstance(step, int) else sorted(step)
    measured = Measured(steps)

    def done(sensitivity: Sensitivity) -> None:
        measured.sensitivities.append(sensitivity)
        if on_done is not None:
            on_done(sensitivity)

    measurement = StepMeasurement(steps, [format_named(name) for name in formats], on_done=done)
    try:
        with observing_loop(measurement):
            measurement.begin()
            yield measured
    finally:
        measurement.finish()
        measured.num_steps = measurement.num_steps
        measured.failure = measurement.failure
