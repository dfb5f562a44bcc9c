"""MLflow: curves as `roundoff.loss`, the verdict as a tag and findings as a file (it has no alerts), the page."""

from __future__ import annotations

import time

from roundoff.report.loggers.logged_run import PROJECT, LoggedRun

_MAX_METRICS = 1000
"""MLflow takes at most this many at once."""


def send(logged: LoggedRun) -> None:
    """Log into the run that the training has open, or into a new one, where `MLFLOW_TRACKING_URI` says."""
    import mlflow
    from mlflow.entities import Metric

    opened = None
    if (run := mlflow.active_run()) is None:
        mlflow.set_experiment(PROJECT)
        run = opened = mlflow.start_run(run_name=logged.name)
    client, key, now = mlflow.MlflowClient(), run.info.run_id, int(1000 * time.time())
    metrics = [
        Metric(f"roundoff.{name}", value, now, step) for step, values in logged.curves for name, value in values.items()
    ]
    for start in range(0, len(metrics), _MAX_METRICS):
        client.log_batch(key, metrics=metrics[start : start + _MAX_METRICS])
    client.set_tag(key, "roundoff.verdict", logged.verdict)
    client.log_text(key, "\n\n".join(text for _, text, _ in logged.alerts) or logged.verdict, "roundoff.txt")
    client.log_artifact(key, str(logged.page))
    if opened is not None:
        mlflow.end_run()
