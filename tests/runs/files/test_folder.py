from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from roundoff.errors import RunFolderError
from roundoff.runs import next_free_name
from roundoff.runs.files.folder import part_paths, ranks_with_files, replay_path, tensors_path


def test_the_first_run_is_number_one_and_its_parents_are_made(tmp_path: Path):
    assert next_free_name(tmp_path / "a" / "runs", "train") == tmp_path / "a" / "runs" / "train-1"


def test_a_higher_number_is_a_later_run(tmp_path: Path):
    for name in ("train-2", "train-9", "train-old", "trainer-50", "train-10.zip"):
        (tmp_path / name).mkdir()
    assert next_free_name(tmp_path, "train").name == "train-10"


def test_a_stem_is_not_a_pattern(tmp_path: Path):
    (tmp_path / "axb-7").mkdir()
    assert next_free_name(tmp_path, "a.b").name == "a.b-1"


def test_trainings_started_together_get_different_names(tmp_path: Path):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: next_free_name(tmp_path, "train"), range(40)))
    assert len(set(found)) == 40


def test_a_place_that_cannot_be_written_to_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"No run can be written to '.*file/runs'\.\n  why: .*: Not a directory\."):
        next_free_name(tmp_path / "file" / "runs", "train")


def test_parts_are_ordered_by_number_not_by_text(tmp_path: Path):
    (tmp_path / "events").mkdir()
    for rank, part in ((10, 0), (2, 100_000), (2, 99_999)):
        part_paths["events"](tmp_path, rank=rank, part=part).touch()
    assert [numbers for numbers, _ in part_paths["events"].find(tmp_path)] == [(2, 99_999), (2, 100_000), (10, 0)]


def test_only_finished_files_count(tmp_path: Path):
    for folder in ("events", "tensors", "replay"):
        (tmp_path / folder).mkdir()
    for name in (
        "events/rank0-part-00000.parquet.tmp",
        "events/notes.txt",
        "tensors/rank1-step3.safetensors.tmp",
        "metrics-rank2.jsonl.tmp",
        "replay/stepping",
    ):
        (tmp_path / name).touch()
    assert part_paths["events"].find(tmp_path) == []
    assert tensors_path.find(tmp_path) == []
    assert replay_path.find(tmp_path) == []
    assert ranks_with_files(tmp_path) == set()
