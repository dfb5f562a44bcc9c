"""Measures one step of any training: what rounding each of its tensors would do to the loss."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from roundoff.errors import SensitivityError
from roundoff.formats import Format, format_named
from roundoff.precision import apply_recipe
from roundoff.record.loop.observer import observing_loop
from roundoff.sensitivity.effects import Sensitivity
from roundoff.sensitivity.step_measurement import StepMeasurement
from roundoff.words import plural


def effect_alone(
    model: nn.Module, run_step: Callable[[nn.Module], Tensor], fmt: str, keys: Sequence[str]
) -> dict[str, float]:
    """Return by how much the loss moves if one site, or one op of a site, is rounded and nothing else.

    Every key costs a forward of a copy of the model, in the same state and with the same random numbers.

    Args:
        model: The model in fp32; it is not changed.
        run_step: Returns the loss of one batch. Small effects are lost in the rounding of an fp32 loss: compute it from
            `model(x).double()`.
        fmt: The format to round to.
        keys: Sites or ops as overrides name them: `blocks.1.attn` (with what is inside it), `blocks.1.attn:softmax`.
    """
    before = loss_with(model, run_step, {})
    return {key: loss_with(model, run_step, {key: fmt}) - before for key in keys}


def loss_with(model: nn.Module, run_step: Callable[[nn.Module], Tensor], overrides: Mapping[str, str]) -> float:
    """Return the loss of one batch under the overrides of an fp32 recipe, on a copy of the model."""
    with torch.random.fork_rng(devices=[]):
        narrow = copy.deepcopy(model)
        apply_recipe(narrow, torch.optim.SGD(narrow.parameters(), lr=0.0), "fp32", overrides=overrides)
        return float(run_step(narrow).detach())


class NarrowTrainingWarning(UserWarning):
    """The step that was measured did not compute in fp32."""


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
        taken = plural(self.num_steps, "step")
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
    computed_again: int = 256,
    on_done: Callable[[Sensitivity], None] | None = None,
) -> Iterator[Measured]:
    """Follow the trainings of this process inside the block, and measure one step; no number of it changes.

    Every call that a recipe would round if its site took a narrow format is made again with rounded operands and a
    rounded result: the error that this introduces, times the gradient of the result, is what it moves the loss by. For
    the sites where that is most, the rest of the forward pass is then computed again from what the step has kept, with
    this site alone narrow: errors of few bits are not small. Beside that it is noted what rounding does to the values
    and to the gradient. The training must compute in fp32; a `NarrowTrainingWarning` says if it did not. The measured
    step takes many times as long as another, and its compiled parts run eagerly.

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
        computed_again: For how many sites, and ops of them, the forward pass is computed again in each format; each
            costs half a forward pass, on average. With 0 errors are taken for small.
        on_done: Called with each result as soon as the step has closed. A `SystemExit` that it raises ends the script.

    Raises:
        FormatError: there is no such format.
        SensitivityError: a step or a number that cannot be, or no format.
    """
    if computed_again < 0:
        raise SensitivityError.explain(
            f"computed_again={computed_again} cannot be.", why="it is a number of sites.", fix="use 0 or more."
        )
    steps, wanted = _check_steps(step), _find_formats(formats)
    measured = Measured(steps)

    def done(sensitivity: Sensitivity) -> None:
        measured.sensitivities.append(sensitivity)
        if signs := str(measurement.narrow_signs):
            _warn_if_narrow(signs)
        if on_done is not None:
            on_done(sensitivity)

    measurement = StepMeasurement(steps, wanted, computed_again=computed_again, on_done=done)
    try:
        with observing_loop(measurement):
            measurement.begin()
            yield measured
    finally:
        measurement.finish()
        measured.num_steps = measurement.num_steps
        measured.failure = measurement.failure


def _check_steps(step: int | Sequence[int]) -> list[int]:
    steps = list(step) if isinstance(step, Iterable) else [step]
    if not steps or not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in steps):
        raise SensitivityError.explain(
            f"step={step!r} cannot be measured.",
            why="a step is a whole number, and they count from 0.",
            fix="use step=2, or several: step=[0, 2].",
        )
    return sorted(steps)


def _find_formats(names: Sequence[str]) -> list[Format]:
    if isinstance(names, str) or not names:
        raise SensitivityError.explain(
            f"formats={names!r} cannot be tried.",
            why="they are a list of names, of at least one.",
            fix='use formats=["fp16", "bf16"].',
        )
    return [format_named(name) for name in names]


def _warn_if_narrow(signs: str) -> None:
    warnings.warn(
        f"The training that was measured does not compute in fp32: {signs}. What is narrow already counts as exact, or "
        "is left out. Measure with the recipe fp32 (ROUNDOFF_RECIPE=fp32), without autocast and with weights in fp32.",
        NarrowTrainingWarning,
        stacklevel=2,
    )
