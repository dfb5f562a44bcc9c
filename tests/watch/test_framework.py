"""A watch that a callback begins and ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.record.loop.observer import is_observed
from roundoff.runs import ExceptionDetail, Run
from roundoff.watch.framework import FrameworkWatch, missing_library
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watching import watching

QUICK = WatchSettings(probe_seconds=0, recorded_steps=())


def train() -> None:
    model = nn.Linear(2, 1)
    model(torch.ones(3, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_a_training_is_watched_between_begin_and_end_and_gets_its_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    framework = FrameworkWatch(to=tmp_path / "run", settings=QUICK)
    framework.begin()
    assert is_observed()
    train()
    framework.end()
    assert not is_observed()
    assert "watched 1 step" in capsys.readouterr().err
    framework.end()
    assert capsys.readouterr().err == ""
    assert Run.open(tmp_path / "run").info.status == "finished"


def test_what_ended_the_training_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    framework = FrameworkWatch(to=tmp_path / "run", settings=QUICK)
    framework.begin()
    framework.end(ValueError("no more data"))
    run = Run.open(tmp_path / "run")
    assert run.info.status == "failed"
    ((_, anomaly),) = run.anomalies()
    assert (anomaly.name, anomaly.detail_as(ExceptionDetail).message) == ("ValueError", "no more data")
    capsys.readouterr()


def test_a_training_that_is_watched_already_is_left_at_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    framework = FrameworkWatch(to=tmp_path / "second", settings=QUICK)
    with watching(to=tmp_path / "first"):
        framework.begin()
        framework.end()
    assert framework.watch is None
    assert not (tmp_path / "second").exists()
    assert "already being watched" in capsys.readouterr().err


def test_a_training_that_never_said_it_ended_is_closed_when_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    framework = FrameworkWatch(to=None, settings=QUICK)
    framework.begin()
    first = framework.watch
    framework.begin()
    framework.end()
    assert first is not None
    assert framework.watch is not None
    assert first.folder != framework.watch.folder
    assert {Run.open(watch.folder).info.status for watch in (first, framework.watch)} == {"finished"}
    capsys.readouterr()


def test_a_forked_worker_does_not_end_the_watch_of_its_parent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = FrameworkWatch(to=tmp_path / "run", settings=QUICK)
    framework.begin()
    process = os.getpid()
    with monkeypatch.context() as inside:
        inside.setattr(os, "getpid", lambda: process + 1)
        framework.end()
    assert Run.open(tmp_path / "run").info.status == "running"
    framework.end()
    assert Run.open(tmp_path / "run").info.status == "finished"
    capsys.readouterr()


def test_a_missing_library_is_reported_with_what_to_install() -> None:
    error = missing_library("Lightning", extra="lightning")
    assert "Lightning, which is not installed" in str(error)
    assert "pip install 'roundoff[lightning]'" in str(error)
