"""What the watch may cost, and what it has cost."""

from __future__ import annotations

import time

_FREE_SECONDS_PER_STEP = 100e-6
"""A step so short that two empty hooks cost more than its share may still be watched for this long."""


class TimeBudget:
    """Adds up the time the watch takes and says whether there is room for more.

    What has to be done whatever it costs (the first steps, replays) is exempt: it counts neither as cost nor as
    training.

    Args:
        share: of the training's time, 0.02 for 2 %.
    """

    def __init__(self, share: float) -> None:
        self.spent_seconds = 0.0
        self.exempt_seconds = 0.0
        self._share = share
        self._began = time.perf_counter()
        self._num_steps = 0
        self._of_task: dict[str, float] = {}
        self._last_of_task: dict[str, float] = {}

    @property
    def training_seconds(self) -> float:
        """How long the training itself has taken."""
        elapsed = time.perf_counter() - self._began
        return max(elapsed - self.spent_seconds - self.exempt_seconds, 0.0)

    @property
    def cost(self) -> float:
        """What the watch has cost, as a share of the training's time."""
        training = self.training_seconds
        return self.spent_seconds / training if training > 0 else 0.0

    def start_anew(self) -> None:
        """Count from now on: the steps that are watched fully are over."""
        costs = self._last_of_task
        self.__init__(self._share)  # type: ignore[misc]
        self._last_of_task = costs

    def count_step(self) -> None:
        """Take note that a step has ended."""
        self._num_steps += 1

    def spend(self, seconds: float, task: str = "") -> None:
        """Take note of time spent on a task."""
        self.spent_seconds += seconds
        self._of_task[task] = self._of_task.get(task, 0.0) + seconds
        self._last_of_task[task] = seconds

    def exempt(self, seconds: float) -> None:
        """Take note of time that does not count."""
        self.exempt_seconds += seconds

    def has_room(self, task: str, *, part: float) -> bool:
        """Say whether a task that may take `part` of the budget may be done once more."""
        if self._share <= 0:
            return False
        allowed = max(self._share * self.training_seconds, _FREE_SECONDS_PER_STEP * self._num_steps)
        wanted = self._last_of_task.get(task, 0.0)
        return self._of_task.get(task, 0.0) + wanted <= part * allowed and self.spent_seconds + wanted <= allowed
