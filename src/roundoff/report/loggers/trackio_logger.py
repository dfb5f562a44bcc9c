"""Trackio: curves, findings as alerts, the page as an artifact."""

from __future__ import annotations

from roundoff.report.loggers.logged_run import PROJECT, LoggedRun


def send(logged: LoggedRun) -> None:
    """Log into the run that the training has open, or into a new one."""
    import trackio
    from trackio.context_vars import current_run

    levels = {"error": trackio.AlertLevel.ERROR, "warning": trackio.AlertLevel.WARN}
    is_open = current_run.get() is not None
    if not is_open:
        trackio.init(project=PROJECT, name=logged.name, auto_log_gpu=False, auto_log_cpu=False)
    for step, values in logged.curves:
        trackio.log({f"roundoff/{name}": value for name, value in values.items()}, step=step)
    for title, text, severity in logged.alerts:
        trackio.alert(title, text, level=levels[severity])
    trackio.log_artifact(logged.page, name=f"roundoff-{logged.name}", type="page")
    if not is_open:
        trackio.finish()
