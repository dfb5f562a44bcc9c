"""The matrix of ranks and steps: who agrees with whom, in words and letters."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from roundoff.diagnose.diagnosis import RunView
from roundoff.report.run_page import rank_matrix as ranks
from roundoff.report.run_page.rank_matrix import ranks_section
from roundoff.report.run_page.section import Section
from roundoff.runs import CachedRun, Run
from tests.report.sample_runs import HOSTILE, write_metrics_run, write_ranks_run


def section_of(run: Run) -> Section:
    section = ranks_section(RunView(run=CachedRun.of(run), findings=()))
    assert section is not None
    return section


def section(folder: Path, odd: Callable[[str, int, int], int], names: tuple[str, ...] = ("a", "b")) -> Section:
    return section_of(write_ranks_run(folder, names=list(names), odd=odd))


def sentences(part: Section) -> list[str]:
    items = re.findall(r"<li>(.*?)</li>", part.body)
    return [re.sub(r"<.*?>", "", item) for item in items]


def rows(part: Section) -> list[list[str]]:
    lines = re.findall(r"<tr>(.*?)</tr>", part.body)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in lines]


def leaves(kind: str, step: int, rank: int) -> int:
    return kind == "parameter" and rank == 2 and step >= 3


def test_each_kind_has_its_sentence(tmp_path: Path):
    assert sentences(section(tmp_path / "a", leaves)) == [
        "model inputs: Every rank has different batches in all 6 steps that were checked.",
        "gradients after backward: All 4 ranks agree in all 6 steps that were checked.",
        "gradients used by the optimizer: All 4 ranks agree in all 6 steps that were checked.",
        "weights after the step: Rank 2 differs from ranks 0, 1, 3 from step 3 on; 1 of 2 tensors differ: b.",
    ]


def test_columns_are_stretches_of_steps_and_letters_are_groups(tmp_path: Path):
    part = section(tmp_path / "a", leaves)
    assert rows(part)[0] == ["step", "0–2", "3–5"]  # noqa: RUF001
    assert rows(part)[-4:] == [
        ["rank 0", "A", "A"],
        ["rank 1", "A", "A"],
        ["rank 2", "A", "B"],
        ["rank 3", "A", "A"],
    ]
    assert part.body.count('<td class="odd">') == 1
    assert part.thinned == []


def test_a_disagreement_that_passes_is_reported_so(tmp_path: Path):
    part = section(tmp_path / "a", lambda kind, step, rank: kind == "parameter" and rank == 1 and step in (2, 3))
    assert "Rank 1 differs from ranks 0, 2, 3 in steps 2 to 3, and not later" in sentences(part)[-1]


def test_batches_that_two_ranks_share_are_reported(tmp_path: Path):
    part = section(tmp_path / "a", lambda kind, step, rank: kind == "input" and rank == 1)
    assert sentences(part)[0] == "model inputs: Ranks 0, 1 receive the same batch from step 0 on."


def test_names_stay_text(tmp_path: Path):
    part = section(tmp_path / "a", leaves, names=("a", HOSTILE))
    assert "<script>" not in part.body
    assert "&lt;script&gt;" in part.body


def test_what_there_is_no_room_for_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranks, "MAX_COLUMNS", 2)
    monkeypatch.setattr(ranks, "MAX_RANKS", 2)
    part = section(tmp_path / "a", lambda kind, step, rank: kind == "parameter" and rank == 3 and step % 2)
    assert part.thinned == [
        "The first 2 of 6 intervals of steps are shown.",
        "2 of 4 ranks are shown, those that differ from the majority first.",
    ]
    assert [line[0] for line in rows(part)[-2:]] == ["rank 0", "rank 3"]


def test_one_rank_has_no_matrix(tmp_path: Path):
    assert ranks_section(RunView(run=CachedRun.of(write_metrics_run(tmp_path / "a", [1.0])), findings=())) is None
