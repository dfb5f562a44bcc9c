"""The block inside which a training is watched; what the watch does is in tests/watch/test_session.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.errors import RecordError, RoundoffError
from roundoff.record.loop.observer import is_observed
from roundoff.runs import ExceptionDetail, Run
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watching import next_folder, start_watching, watching


def test_an_unknown_way_to_act_is_refused_with_those_there_are(tmp_path: Path) -> None:
    settings = WatchSettings(on_anomaly="explode")
    with pytest.raises(RecordError, match=r"no way 'explode'.*\n.*report, stop, skip"):
        start_watching(to=tmp_path / "run", settings=settings)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    with watching(to=tmp_path / "run"):
        pass
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(RoundoffError), watching(to=tmp_path / "run"):
        pass
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert not is_observed()


def test_an_exception_is_kept_with_its_site_and_reaches_the_caller(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="shapes"), watching(model, to=tmp_path / "run"):
        model(torch.ones(3, 5))
    run = Run.open(tmp_path / "run")
    ((_, anomaly),) = run.anomalies()
    assert (anomaly.kind, anomaly.name, anomaly.detail_as(ExceptionDetail).site) == ("exception", "RuntimeError", "0")
    assert run.info.status == "failed"
    assert not is_observed()


def test_who_leaves_by_the_keyboard_is_no_anomaly(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), watching(to=tmp_path / "run"):
        raise KeyboardInterrupt
    run = Run.open(tmp_path / "run")
    assert (run.anomalies(), run.info.status) == ([], "failed")


def test_several_models_are_named_from_the_start(tmp_path: Path) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()])
    with watching([first, second], optimizer, to=tmp_path / "run"):
        second(first(torch.ones(1, 2))).sum().backward()
        optimizer.step()
    (structure,) = Run.open(tmp_path / "run").structures()
    assert {p.name for p in structure.parameters} == {"weight", "bias", "Linear:weight", "Linear:bias"}


def test_the_next_free_folder_is_named_after_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/somewhere/train_it.py"])
    first = next_folder()
    assert first.parts[:-1] == ("runs",)
    assert first.name.startswith("train_it")
    with watching(to=first):
        pass
    assert next_folder() != first
    monkeypatch.setattr("sys.argv", [""])
    assert next_folder().name.startswith("train")
