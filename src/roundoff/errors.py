"""Every error roundoff raises on purpose.

RoundoffError
├── FormatError       a number format that does not exist or cannot be
├── KernelError       a tensor that a kernel cannot take
├── RunFolderError    a run folder that is missing, broken, too new, or already taken
├── RecipeError       a recipe that does not exist, cannot be, or does not fit its model
│   └── LossScaleError    a loss scale that does not help: too many steps in a row overflow
├── RecordError       a recording that was asked for something it cannot do
├── ScriptError       a script that cannot be started
├── ReplayError       a saved step that cannot be run again, or not with what it was given
├── TrainError        a training that cannot be as it was asked for
├── DataError         training data that is missing, broken, or too little
├── CheckpointError   a checkpoint that is missing, broken, hostile, or of no known format
├── CompareError      two things that cannot be compared
├── SweepError        a sweep that cannot be as its file says, or whose folder is taken
├── BisectError       a bisection that has nothing to find, or cannot be as it was asked for
├── TrialError        a training that a bisection or a plan has tried, and that broke down
├── ClusterError      a cluster that is not there, or cannot be reached
├── SensitivityError  a step that was to be measured and was not
├── PlanError         a plan that cannot be as it was asked for, or cannot be made for this training
├── SwitchError       a switch that does not exist, or cannot be as it was asked for
├── DemoError         a command of the demo that did not do what it shows
├── ServeError        a server that cannot be started as it was asked for
└── UsageError        arguments that do not fit together

The CLI prints these without a traceback and exits with 2. Anything else that escapes is a bug of ours.
"""

from __future__ import annotations

from typing import Self


class RoundoffError(Exception):
    """What happened, why, and what to do, in one text.

    >>> print(RoundoffError.explain("No format 'e4m4'.", why="known are e4m3, e5m2.", fix="use e4m3."))
    No format 'e4m4'.
      why: known are e4m3, e5m2.
      fix: use e4m3.
    """

    @classmethod
    def explain(cls, what: str, *, why: str | None = None, fix: str | None = None) -> Self:
        """Build the error from its three sentences; the text is all it carries, so it survives pickling."""
        lines = [what]
        if why:
            lines.append(f"  why: {why}")
        if fix:
            lines.append(f"  fix: {fix}")
        return cls("\n".join(lines))


class FormatError(RoundoffError):
    """A number format that does not exist, or cannot be."""


class KernelError(RoundoffError):
    """A tensor or argument that a kernel cannot take."""


class RunFolderError(RoundoffError):
    """A run folder that is missing, broken, written by a newer version, or already taken."""


class RecipeError(RoundoffError):
    """A recipe that does not exist, cannot be, or does not fit the model it is applied to."""


class LossScaleError(RecipeError):
    """Too many steps in a row overflowed; the text names the gradient."""


class RecordError(RoundoffError):
    """A recording that was asked for something it cannot do."""


class ScriptError(RoundoffError):
    """A training script that cannot be started."""


class ReplayError(RoundoffError):
    """A saved step that cannot be run again, or not with the model it was given."""


class TrainError(RoundoffError):
    """A training that cannot be as it was asked for, or that lost one of its processes."""


class DataError(RoundoffError):
    """Training data that is missing, broken, or too little."""


class CheckpointError(RoundoffError):
    """A checkpoint that is missing, broken, hostile, too large or of no known format; names file and place."""


class CompareError(RoundoffError):
    """Two things that cannot be compared, or not as it was asked for."""


class SweepError(RoundoffError):
    """A sweep that cannot be as its file says, or whose folder is taken."""


class BisectError(RoundoffError):
    """A bisection that has nothing to find, or cannot be as it was asked for."""


class TrialError(RoundoffError):
    """A training that a bisection or a plan has tried, and that broke down."""


class ClusterError(RoundoffError):
    """A cluster that is not there, or cannot be reached."""


class SensitivityError(RoundoffError):
    """A step that was to be measured and was not."""


class PlanError(RoundoffError):
    """A plan that cannot be as it was asked for, or cannot be made for this training."""


class SwitchError(RoundoffError):
    """A switch that does not exist, or cannot be as it was asked for."""


class ServeError(RoundoffError):
    """A server that cannot be started as it was asked for."""


class DemoError(RoundoffError):
    """A command of the demo that did not end as it must."""


class UsageError(RoundoffError):
    """Arguments that do not fit together."""


def first_line(error: BaseException) -> str:
    """Return the first line of what another library says, to stand behind `why:`; its name if it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
