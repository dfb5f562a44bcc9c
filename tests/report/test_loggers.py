"""Runs in experiment loggers: the real libraries, without a network."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from types import ModuleType

import pytest

from roundoff.errors import UsageError
from roundoff.report.loggers.logged_run import LOGGERS, check_loggers, log_run
from roundoff.runs import Finding, Metrics, Run, Severity
from tests.run_folders import write_run

FINDING = Finding(
    rule="overflow",
    severity=Severity.ERROR,
    confidence=1.0,
    step=2,
    title="fp16 matmul overflowed",
    why="the product exceeds 65504",
    fix="keep it wide",
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    losses = [1.0, 0.5, float("nan")]
    run = write_run(tmp_path / "train-1", [Metrics(step=step, loss=loss) for step, loss in enumerate(losses)])
    run.write_findings([FINDING])
    return run


def test_a_logger_that_fails_is_one_line_and_the_others_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    for name in LOGGERS:
        module = ModuleType(f"{name}_logger")
        vars(module)["send"] = (lambda logged: 1 / 0) if name == "wandb" else sent.append
        monkeypatch.setitem(sys.modules, f"roundoff.report.loggers.{name}_logger", module)
    assert log_run(run, ["wandb", "mlflow"]) == ["the run was not logged to wandb: ZeroDivisionError: division by zero"]
    (logged,) = sent
    assert [step for step, _ in logged.curves] == [0, 1, 2]
    assert [values.get("loss") for _, values in logged.curves] == [1.0, 0.5, None]
    assert logged.verdict == "overflow: fp16 matmul overflowed"


def test_a_logger_that_does_not_exist_or_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no logger 'wand'"):
        check_loggers(["wand"])
    monkeypatch.setattr("roundoff.report.loggers.logged_run.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install wandb"):
        check_loggers(["wandb"])


@pytest.mark.filterwarnings("ignore")
def test_wandb_gets_curves_an_alert_and_the_page(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    assert log_run(run, ["wandb"]) == []
    (file,) = tmp_path.rglob("run-*.wandb")
    content = file.read_bytes()
    for word in (b"roundoff/loss", b"overflow: fp16 matmul overflowed", b"the product exceeds 65504", b"roundoff.html"):
        assert word in content


@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_curves_a_tag_and_the_page(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    assert log_run(run, ["mlflow"]) == []
    client = mlflow.MlflowClient()
    (logged,) = client.search_runs([client.get_experiment_by_name("roundoff").experiment_id])
    assert logged.info.run_name == "train-1"
    assert [(each.step, each.value) for each in client.get_metric_history(logged.info.run_id, "roundoff.loss")] == [
        (0, 1.0),
        (1, 0.5),
    ]
    assert logged.data.tags["roundoff.verdict"] == "overflow: fp16 matmul overflowed"
    assert {file.path for file in client.list_artifacts(logged.info.run_id)} == {"roundoff.html", "roundoff.txt"}


@pytest.mark.filterwarnings("ignore")
def test_trackio_gets_curves_an_alert_and_the_page(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    assert log_run(run, ["trackio"]) == []
    tables: dict[str, str] = {}
    for file in Path(trackio.utils.TRACKIO_DIR).rglob("*.db"):
        with sqlite3.connect(file) as database:
            for (name,) in database.execute("select name from sqlite_master where type = 'table'").fetchall():
                tables[name] = tables.get(name, "") + json.dumps(
                    database.execute(f"select * from {name}").fetchall(), default=str
                )
    assert "roundoff/loss" in tables["metrics"]
    assert "fp16 matmul overflowed" in tables["alerts"]
    assert any("roundoff.html" in text for text in tables.values())
