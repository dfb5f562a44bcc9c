"""Weights & Biases: curves as `roundoff/loss`, findings as alerts, the page as an artifact."""

from __future__ import annotations

from roundoff.report.loggers.logged_run import PROJECT, LoggedRun


def send(logged: LoggedRun) -> None:
    """Log into the run that the training has open, or into a new one; `WANDB_MODE=offline` keeps it here."""
    import wandb

    opened = None
    if (run := wandb.run) is None:
        run = opened = wandb.init(project=PROJECT, name=logged.name, settings=wandb.Settings(silent=True))
    # Steps of our own: those of the training's run may be counted in another way, and never go back.
    run.define_metric("roundoff/step")
    run.define_metric("roundoff/*", step_metric="roundoff/step")
    for step, values in logged.curves:
        run.log({"roundoff/step": step, **{f"roundoff/{name}": value for name, value in values.items()}})
    run.summary["roundoff/verdict"] = logged.verdict
    for title, text, severity in logged.alerts:
        run.alert(title=title, text=text, level="ERROR" if severity == "error" else "WARN", wait_duration=0)
    artifact = wandb.Artifact(f"roundoff-{logged.name}", type="roundoff-page")
    artifact.add_file(str(logged.page))
    run.log_artifact(artifact)
    if opened is not None:
        opened.finish()
