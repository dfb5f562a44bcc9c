"""Device profiles: functions that a device has only in few bits, imitated whatever else the recipe says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from roundoff.formats import format_named
from roundoff.precision.computation import Computation
from roundoff.precision.emulated_ops import RoundResults, Scope, profile_policy


def add_profile(computation: Computation, profile: str) -> None:
    """Make a computation round what the profile's functions take and give to fp16, in every site."""
    policy = profile_policy(profile)
    scope = Scope()
    fmt = format_named("fp16")
    plain = computation.computing

    @contextmanager
    def computing() -> Iterator[None]:
        scope.enter(fmt)
        try:
            with RoundResults(scope, policy), plain():
                yield
        finally:
            scope.enter(None)

    def bound() -> AbstractContextManager[Any]:
        return computing()

    computation.computing = bound  # type: ignore[method-assign]
    computation.reenters = True
