"""Trains a net of a few weights three times, and proves on it that this roundoff and this torch fit each other."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

NUM_STEPS = 3
FORWARD = {"0": "aten.addmm", "1": "aten.tanh", "2": "aten.addmm"}
BACKWARD = {"0": "aten.mm", "1": "aten.tanh_backward", "2": "aten.mm"}
PARAMETERS = {"0.weight", "0.bias", "2.weight", "2.bias"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise of roundoff, and why it does not hold here; None if it does."""

    name: str
    failure: str | None

    @property
    def passed(self) -> bool:
        """Whether it holds."""
        return self.failure is None


def run_self_test() -> tuple[Check, ...]:
    """Train bare, recorded and watched, and compare; takes a second or two once torch is loaded.

    Whatever is raised is a check that failed, not an error: this also runs on untested versions of torch.
    """
    with tempfile.TemporaryDirectory(prefix="roundoff-self-test-") as folder, _quietly():
        trainings = _Trainings(Path(folder))
        checks = {
            "recording and watching change no weight": trainings.check_neutral,
            "every op of a step is recorded": trainings.check_complete,
            "ops of backward are attributed to their layers": trainings.check_backward,
            "a replayed step is bit-identical": trainings.check_replay,
        }
        return tuple(Check(name=name, failure=_failure_of(check)) for name, check in checks.items())


class _Trainings:
    """The same training, bare, recorded and watched, each made when a check first needs it."""

    def __init__(self, folder: Path) -> None:
        self._recorded, self._watched = folder / "recorded", folder / "watched"

    def check_neutral(self) -> str | None:
        """Compare the final weights bit for bit."""
        from roundoff.record import recording
        from roundoff.watch.watching import watching

        bare = _train()
        with recording(to=self._recorded, inputs=True, strict=True):
            recorded = _train()
        with watching(to=self._watched, budget=1.0):
            watched = _train()
        changed = [name for name, weights in (("recording", recorded), ("watching", watched)) if weights != bare]
        return f"{' and '.join(changed)} changed the weights" if changed else None

    def check_complete(self) -> str | None:
        """Look for the ops that every layer must have, and for every parameter in backward and optimizer."""
        from roundoff.runs import Run

        events = list(Run.open(self._recorded).iter_events(step=1))
        forward = {(event.site, event.op) for event in events if event.phase == "forward"}
        if missing := sorted(set(FORWARD.items()) - forward):
            return f"no {missing[0][1]} of layer {missing[0][0]} in forward"
        for phase in ("backward", "optimizer"):
            seen = {event.parameter for event in events if event.phase == phase}
            if absent := sorted(PARAMETERS - seen):
                return f"no event of {absent[0]} in {phase}"
        return None

    def check_backward(self) -> str | None:
        """Look for the gradient of every layer's op at that layer."""
        from roundoff.runs import Run

        events = [event for event in Run.open(self._recorded).iter_events(step=1) if event.phase == "backward"]
        wrong = sorted(set(BACKWARD.items()) - {(event.site, event.op) for event in events})
        return f"no {wrong[0][1]} at layer {wrong[0][0]} in backward" if wrong else None

    def check_replay(self) -> str | None:
        """Compare the steps that the watch has replayed with those that were recorded as they ran."""
        from roundoff.runs import Run

        watched = Run.open(self._watched)
        if failures := watched.failures():
            return f"{failures[0].name}: {failures[0].error}"
        replayed = {event.key: event.hash for event in watched.iter_events(step=1)}
        for event in Run.open(self._recorded).iter_events(step=1):
            if event.site in FORWARD and replayed.get(event.key) != event.hash:
                return f"{event.op} of layer {event.site} in {event.phase} differs"
        return None


def _train() -> dict[str, bytes]:
    """Train a small net and return its weights as bytes."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(torch.randn(16, 4)), torch.randn(16, 2)).backward()
            optimizer.step()
    return {name: weight.detach().numpy().tobytes() for name, weight in model.named_parameters()}


def _failure_of(check: Callable[[], str | None]) -> str | None:
    try:
        return check()
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep what recordings and watches say of themselves from the screen."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
