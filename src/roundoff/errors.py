"""Every error roundoff raises on purpose.

RoundoffError
├── FormatError       an unknown or invalid number format
├── KernelError       a tensor that a kernel does not support
├── RunFolderError    a run folder that is missing, broken, too new, or already in use
├── RecipeError       a recipe that is unknown, invalid, or does not fit its model
│   └── LossScaleError    too many steps in a row overflowed
├── RecordError       a recording with invalid options
├── ScriptError       a script that cannot be started
├── ReplayError       a saved step that cannot be run again, or not with the given model
├── TrainError        a training with invalid settings, or one that lost a process
├── DataError         training data that is missing, broken, or too little
├── CheckpointError   a checkpoint that is missing, broken, hostile, or of no known format
├── CompareError      two things that cannot be compared
├── SweepError        an invalid sweep file, or a folder that is already in use
├── BisectError       a bisection that has nothing to find, or has invalid options
├── TrialError        a trial of a bisection or plan that failed
├── ClusterError      a cluster that does not exist, or cannot be reached
├── SensitivityError  a step that could not be measured
├── PlanError         a plan with invalid options, or one that cannot be made for this training
├── SwitchError       an unknown switch, or one with an invalid value
├── DemoError         a command of the demo that failed
├── ServeError        a server that cannot be started
└── UsageError        arguments that do not fit together

The CLI prints these without a traceback and exits with 2. Any other exception is a bug in roundoff.
"""

from __future__ import annotations

from typing import Self


class RoundoffError(Exception):
    """An error whose text says what happened, why, and what to do.

    >>> print(RoundoffError.explain("No format 'e4m4'.", why="known are e4m3, e5m2.", fix="use e4m3."))
    No format 'e4m4'.
      why: known are e4m3, e5m2.
      fix: use e4m3.
    """

    @classmethod
    def explain(cls, what: str, *, why: str | None = None, fix: str | None = None) -> Self:
        """Build the error from its three sentences; it has no other state, so that it survives pickling."""
        lines = [what]
        if why:
            lines.append(f"  why: {why}")
        if fix:
            lines.append(f"  fix: {fix}")
        return cls("\n".join(lines))


class FormatError(RoundoffError):
    """An unknown or invalid number format."""


class KernelError(RoundoffError):
    """A tensor or argument that a kernel does not support."""


class RunFolderError(RoundoffError):
    """A run folder that is missing, broken, written by a newer version, or already in use."""


class RecipeError(RoundoffError):
    """A recipe that is unknown, invalid, or does not fit the model."""


class LossScaleError(RecipeError):
    """Too many steps in a row overflowed; the message names the gradient."""


class RecordError(RoundoffError):
    """A recording with invalid options."""


class ScriptError(RoundoffError):
    """A training script that cannot be started."""


class ReplayError(RoundoffError):
    """A saved step that cannot be run again, or not with the given model."""


class TrainError(RoundoffError):
    """A training with invalid settings, or one that lost a process."""


class DataError(RoundoffError):
    """Training data that is missing, broken, or too little."""


class CheckpointError(RoundoffError):
    """A checkpoint that is missing, broken, hostile, too large or of no known format; the message says where."""


class CompareError(RoundoffError):
    """Two things that cannot be compared, or not in the requested way."""


class SweepError(RoundoffError):
    """An invalid sweep file, or a folder that is already in use."""


class BisectError(RoundoffError):
    """A bisection that has nothing to find, or has invalid options."""


class TrialError(RoundoffError):
    """A trial of a bisection or plan that failed."""


class ClusterError(RoundoffError):
    """A cluster that does not exist, or cannot be reached."""


class SensitivityError(RoundoffError):
    """A step that could not be measured."""


class PlanError(RoundoffError):
    """A plan with invalid options, or one that cannot be made for this training."""


class SwitchError(RoundoffError):
    """An unknown switch, or one with an invalid value."""


class ServeError(RoundoffError):
    """A server that cannot be started."""


class DemoError(RoundoffError):
    """A command of the demo that failed."""


class UsageError(RoundoffError):
    """Arguments that do not fit together."""


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, for `why:`; the name of its class if there is none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
