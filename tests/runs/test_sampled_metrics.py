"""Some steps of a run, at even distances."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from roundoff.errors import RunFolderError
from roundoff.runs import Metrics, sampled_metrics
from roundoff.runs.files.folder import metrics_path


def write(folder: Path, num_steps: int, *, end: str = "") -> Path:
    path = metrics_path(folder, rank=0)
    lines = (Metrics(step=step, loss=float(step)).to_text() + "\n" for step in range(num_steps))
    path.write_text("".join(lines) + end)
    return path


def test_all_steps_of_a_short_run_are_there(tmp_path: Path) -> None:
    write(tmp_path, 20)
    assert [each.step for each in sampled_metrics(tmp_path)] == list(range(20))


def test_of_a_long_run_the_first_the_last_and_others_at_even_distances(tmp_path: Path) -> None:
    write(tmp_path, 20_000)
    steps = [each.step for each in sampled_metrics(tmp_path, most=10)]
    assert (steps[0], steps[-1], len(steps)) == (0, 19_999, 11)
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    assert max(gaps) < 1.2 * min(gaps)


def test_every_line_is_found_whatever_byte_the_search_starts_at(tmp_path: Path) -> None:
    size = write(tmp_path, 150).stat().st_size
    assert [each.step for each in sampled_metrics(tmp_path, most=size)] == list(range(150))


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 1000, end='{"step": 1000, "lo')
    assert sampled_metrics(tmp_path)[-1].step == 999


def test_a_run_without_steps_has_none(tmp_path: Path) -> None:
    assert sampled_metrics(tmp_path) == []
    write(tmp_path, 0)
    assert sampled_metrics(tmp_path) == []


def test_a_broken_line_in_a_long_run_costs_its_place_only(tmp_path: Path) -> None:
    path = write(tmp_path, 1000)
    text = path.read_text()
    path.write_text("{broken" + text[7:])
    assert sampled_metrics(tmp_path)[-1].step == 999


def test_a_short_run_with_a_broken_line_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    path.write_text("{broken\n" + path.read_text())
    with pytest.raises(RunFolderError, match="line 1 cannot be read"):
        sampled_metrics(tmp_path)
