"""Two runs side by side: what each of them was and came to."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from statistics import median

from roundoff.errors import RunFolderError
from roundoff.report.markup import Html, tag
from roundoff.report.run_view import RunView
from roundoff.report.section import Section
from roundoff.runs import KeptRun

Tell = Callable[[KeptRun], str]


def side_by_side_section(view: RunView) -> Section | None:
    """Show the reference and the run beside each other; None if there is no reference."""
    if view.reference is None:
        return None
    return Section(key="sides", title="Side by side", body=side_by_side(view.reference, view.run))


def side_by_side(reference: KeptRun, candidate: KeptRun) -> Html:
    """Return a table with a column for each run; what neither of them tells is left out, what differs is marked."""
    rows = []
    for name, tell in _TOLD.items():
        ours, theirs = _told(tell, reference), _told(tell, candidate)
        if ours or theirs:
            cells = (tag("td", ours or "-"), tag("td", theirs or "-"))
            rows.append(tag("tr", tag("th", name, scope="row"), *cells, class_="differs" if ours != theirs else None))
    heads = tag("tr", *(tag("th", name, scope="col") for name in ("", "reference", "candidate")))
    table = tag("table", tag("thead", heads), tag("tbody", *rows), class_="plain sides")
    return tag("div", table, class_="scrolling", tabindex=0, role="region", aria_label="the runs side by side")


def _told(tell: Tell, run: KeptRun) -> str:
    with suppress(RunFolderError):  # the sections about the file tell of it
        return tell(run)
    return ""


def _losses(run: KeptRun) -> list[float]:
    return [each.loss for each in run.metrics() if each.loss is not None]


def _steps(run: KeptRun) -> str:
    metrics = run.metrics()
    return str(metrics[-1].step + 1) if metrics else ""


def _first_loss(run: KeptRun) -> str:
    return "".join(f"{loss:.6g}" for loss in _losses(run)[:1])


def _last_loss(run: KeptRun) -> str:
    return "".join(f"{loss:.6g}" for loss in _losses(run)[-1:])


def _lowest_loss(run: KeptRun) -> str:
    finite = [each for each in run.metrics() if each.loss is not None and math.isfinite(each.loss)]
    best = min(finite, key=lambda each: each.loss or 0.0, default=None)
    return "" if best is None else f"{best.loss:.6g} in step {best.step}"


def _last_eval_loss(run: KeptRun) -> str:
    return "".join([f"{each.eval_loss:.6g}" for each in run.metrics() if each.eval_loss is not None][-1:])


def _num_nonfinite(run: KeptRun) -> str:
    return str(sum(not math.isfinite(loss) for loss in _losses(run)) or "")


def _num_skipped(run: KeptRun) -> str:
    return str(sum(each.skipped for each in run.metrics()) or "")


def _last_scale(run: KeptRun) -> str:
    return "".join([f"{each.loss_scale:g}" for each in run.metrics() if each.loss_scale is not None][-1:])


def _seconds(run: KeptRun) -> str:
    known = [each.seconds for each in run.metrics() if each.seconds is not None]
    return f"{median(known):.2g} s" if known else ""


def _verdict(run: KeptRun) -> str:
    findings = run.findings()
    return "" if findings is None else findings[0].title if findings else "nothing found"


def _recipe(run: KeptRun) -> str:
    return run.info.recipe or ""


_TOLD: dict[str, Tell] = {
    "status": lambda run: run.info.status,
    "verdict of its own": _verdict,
    "recipe": _recipe,
    "steps": _steps,
    "first loss": _first_loss,
    "lowest loss": _lowest_loss,
    "last loss": _last_loss,
    "last loss of an evaluation": _last_eval_loss,
    "losses that are not finite": _num_nonfinite,
    "skipped steps": _num_skipped,
    "last loss scale": _last_scale,
    "median time of a step": _seconds,
}
