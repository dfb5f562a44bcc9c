"""What is kept of an exception that ended a training."""

from __future__ import annotations

import sys
import traceback

from torch import nn

from roundoff.runs import JsonValue

_MAX_FRAMES = 60
_MAX_CHARACTERS = 8000
_MAX_CAUSES = 5


def exception_detail(error: BaseException) -> dict[str, JsonValue]:
    """Return message, traceback and causes for `Anomaly.detail`; the traceback begins with the innermost frame.

    The end of a long message is kept rather than its middle: that of an exception in a worker ends with what it was.
    """
    message = str(error)
    if len(message) > _MAX_CHARACTERS:
        half = _MAX_CHARACTERS // 2
        message = f"{message[:half]}\n...\n{message[-half:]}"
    frames = list(traceback.walk_tb(error.__traceback__))[::-1][:_MAX_FRAMES]
    lines = [f'  File "{frame.f_code.co_filename}", line {line} in {frame.f_code.co_name}' for frame, line in frames]
    return {"message": message, "traceback": lines, "causes": _causes(error)}


def _causes(error: BaseException) -> list[JsonValue]:
    """Return the exceptions that led to this one, the nearest first."""
    found: list[JsonValue] = []
    while len(found) < _MAX_CAUSES and (cause := error.__cause__ or error.__context__) is not None:
        found.append(f"{type(cause).__name__}: {cause}"[:_MAX_CHARACTERS])
        error = cause
    return found


def has_raised_since(before: BaseException | None) -> bool:
    """Say whether a call that ends now ends with an exception: one that is not `before`, handled when it began."""
    error = sys.exc_info()[1]
    return error is not None and error is not before


def raising_module(error: BaseException) -> nn.Module | None:
    """Return the innermost module whose code the exception came through; None if it came through none."""
    for frame, _ in list(traceback.walk_tb(error.__traceback__))[::-1]:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            return owner
    return None
