"""What is not answered as it was asked: a status and sentences, as a page or as JSON."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from roundoff.report.markup import tag
from roundoff.serve.answers import json_answer
from roundoff.serve.served_page import served_page

_HEADERS = {401: {"www-authenticate": "Bearer"}, 405: {"allow": "GET, HEAD"}}
"""By status: what must be said beside the sentence."""


class Refusal(Exception):
    """A request that is not answered, and why: `status` is that of HTTP."""

    def __init__(self, status: int, what: str, *, why: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.status, self.what, self.why, self.fix = status, what, why, fix

    @classmethod
    def of_error(cls, status: int, error: Exception) -> Refusal:
        """Return the refusal that says what one of our errors says."""
        what, *lines = str(error).split("\n")
        said = {word: text for word, _, text in (line.strip().partition(": ") for line in lines)}
        return cls(status, what, why=said.get("why"), fix=said.get("fix"))


def refuse(request: Request, refusal: Refusal) -> Response:
    """Return the answer that says so: JSON below /api/, a page elsewhere."""
    said = {"error": refusal.what, "why": refusal.why, "fix": refusal.fix}
    if request.url.path.startswith("/api/"):
        answer = json_answer({name: text for name, text in said.items() if text}, status=refusal.status)
    else:
        words = [tag("p", f"{name}: {text}") for name, text in said.items() if text and name != "error"]
        back = tag("p", tag("a", "All runs", href="/", target="_top"))
        answer = HTMLResponse(served_page(refusal.what, *words, back), status_code=refusal.status)
    answer.headers.update(_HEADERS.get(refusal.status, {}))
    return answer
