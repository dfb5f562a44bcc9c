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
from roundoff.record.accelerator import keeping_torch_generators
from roundoff.record.loop.observer import observing_loop
from roundoff.sensitivity.effects import Sensitivity
from roundoff.sensitivity.step_measurement import StepMeasurement
from roundoff.words import plural


def effect_alone(
    model: nn.Module, run_step: Callable[[nn.Module], Tensor], fmt: str, keys: Sequence[str]
) -> dict[str, float]:
    """Return the change of the loss if only one site, or one op of a site, is rounded, by really rounding it.

    Every key costs a forward pass of a copy of the model, in the same state and with the same random numbers.

    Args:
        model: The model in fp32; it is not changed.
        run_step: Returns the loss of one batch. Compute it from `model(x).double()`: small effects are lost in the
            rounding of an fp32 loss.
        fmt: The format to round to.
        keys: Sites or ops as in overrides: `blocks.1.attn` (with what is inside it), `blocks.1.attn:softmax`.
    """
    before = loss_with(model, run_step, {})
    return {key: loss_with(model, run_step, {key: fmt}) - before for key in keys}


def loss_with(model: nn.Module, run_step: Callable[[nn.Module], Tensor], overrides: Mapping[str, str]) -> float:
    """Return the loss of one batch with overrides of the recipe fp32, on a copy of the model."""
    with keeping_torch_generators():
        narrow = copy.deepcopy(model)
        apply_recipe(narrow, torch.optim.SGD(narrow.parameters(), lr=0.0), "fp32", overrides=overrides)
        return float(run_step(narrow).detach())


class NarrowTrainingWarning(UserWarning):
    """The measured step did not compute in fp32."""


class Measured:
    """The measured steps; filled while the block runs."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.sensitivities: list[Sensitivity] = []
        """One for each requested step, in order."""
        self.num_steps = 0
        """How many steps the loop has taken."""
        self.failure: str | None = None
        """Why the measurement ended early."""
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
    """Follow the trainings of this process inside the block, and measure one step; the training itself is unchanged.

    Every call that a recipe would round if its site took a narrow format is repeated with rounded operands and a
    rounded result: the error that this introduces, times the gradient of the result, is the change of the loss. For
    the sites where that is largest, the rest of the forward pass is then computed again from what the step has kept,
    with only this site narrow, because errors of few bits are not small. The effects of rounding on the values and on
    the gradient are measured as well. The training must compute in fp32; otherwise there is a `NarrowTrainingWarning`.
    The measured step takes many times as long as others, and its compiled parts run eagerly.

    >>> import torch
    >>> model = torch.nn.Linear(4, 1)
    >>> with measuring_sensitivity(step=0, formats=["bf16"]) as measured:
    ...     model(torch.ones(2, 4)).sum().backward()
    >>> [(effect.site, effect.op, effect.part) for effect in measured.sensitivity.effects][:3]
    [('<model>', 'linear', 'input'), ('<model>', 'linear', 'weight'), ('<model>', 'linear', 'result')]

    Args:
        step: Which step, from 0; or several, each with its own result. The first ones may say little, because what
            starts at zero has not changed yet.
        formats: The names of the formats to try.
        computed_again: For how many sites, and ops of them, the forward pass is computed again in each format; each
            costs half a forward pass on average. With 0, errors are assumed to be small.
        on_done: Called with each result as soon as the step has closed. A `SystemExit` that it raises ends the script.

    Raises:
        FormatError: a format does not exist.
        SensitivityError: a step or a number is invalid, or there is no format.
    """
    if computed_again < 0:
        raise SensitivityError.explain(
            f"Invalid computed_again={computed_again}.", why="it is a number of sites.", fix="use 0 or more."
        )
    steps, wanted = _check_steps(step), _find_formats(formats)
    measured = Measured(steps)

    def add_result(sensitivity: Sensitivity) -> None:
        measured.sensitivities.append(sensitivity)
        if signs := str(measurement.narrow_signs):
            _warn_if_narrow(signs)
        if on_done is not None:
            on_done(sensitivity)

    measurement = StepMeasurement(steps, wanted, computed_again=computed_again, on_done=add_result)
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
            f"Invalid step={step!r}.",
            why="steps are integers and count from 0.",
            fix="use step=2, or several: step=[0, 2].",
        )
    return sorted(steps)


def _find_formats(names: Sequence[str]) -> list[Format]:
    if isinstance(names, str) or not names:
        raise SensitivityError.explain(
            f"Invalid formats={names!r}.",
            why="it is a list of at least one name.",
            fix='use formats=["fp16", "bf16"].',
        )
    return [format_named(name) for name in names]


def _warn_if_narrow(signs: str) -> None:
    warnings.warn(
        f"The measured training does not compute in fp32: {signs}. What is already narrow counts as exact, or is left "
        "out. Measure with the recipe fp32 (ROUNDOFF_RECIPE=fp32), without autocast and with weights in fp32.",
        NarrowTrainingWarning,
        stacklevel=2,
    )
