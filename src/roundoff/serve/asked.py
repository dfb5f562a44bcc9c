"""What a request asks for, checked: a number is a number, and a misspelt word is told, not ignored."""

from __future__ import annotations

import re

from starlette.requests import Request

from roundoff.serve.refusals import Refusal

_NUMBER = re.compile(r"[0-9]{1,12}")


def only(request: Request, *known: str) -> None:
    """Refuse a request that asks with a word nobody knows: its answer would look as if it had been heeded."""
    for name in request.query_params:
        if name not in known:
            why = f"known are {', '.join(known)}." if known else "nothing can be asked for here."
            raise Refusal(400, f"'{name}' cannot be asked for.", why=why)


def number(request: Request, name: str, *, default: int | None = None, most: int | None = None) -> int | None:
    """Return a number from 0 on, or the default if it is not asked for."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text) or (most is not None and int(text) > most):
        limit = "" if most is None else f" to {most}"
        raise Refusal(400, f"{name}={text} makes no sense.", why=f"it is a whole number from 0{limit}.")
    return int(text)


def text(request: Request, name: str, *, most: int) -> str | None:
    """Return words, or None if they are not asked for."""
    asked = request.query_params.get(name)
    if asked is not None and len(asked) > most:
        raise Refusal(400, f"{name}={asked[:40]}... makes no sense.", why=f"it has at most {most} letters.")
    return asked


def needed(request: Request, name: str) -> str:
    """Return a word that must be there."""
    text = request.query_params.get(name)
    if not text:
        raise Refusal(400, f"It is not said which {name}.", fix=f"add {name}=... to the address.")
    return text
