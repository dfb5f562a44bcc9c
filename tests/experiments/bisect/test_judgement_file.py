from pathlib import Path

import pytest

from roundoff.errors import BisectError, RunFolderError
from roundoff.experiments.bisect.judgements import Judgement, append_judgement, open_judgements

SITES = ["embed", "block.0", "head"]
FIRST = Judgement(sites=frozenset({"embed", "head"}), holds=True)
SECOND = Judgement(sites=frozenset(), holds=False)


def opened(path: Path, *, question: str = "smallest_wide", sites: list[str] = SITES) -> list[Judgement]:
    return open_judgements(path, question=question, sites=sites)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file with two judgements."""
    path = tmp_path / "bisect.jsonl"
    assert opened(path) == []
    append_judgement(path, FIRST)
    append_judgement(path, SECOND)
    return path


def test_judgements_come_back_in_order(path: Path):
    assert opened(path) == [FIRST, SECOND]


def test_the_order_of_the_sites_may_change(path: Path):
    assert opened(path, sites=SITES[::-1]) == [FIRST, SECOND]


def test_an_empty_file_is_a_new_one(tmp_path: Path):
    path = tmp_path / "bisect.jsonl"
    path.touch()
    assert opened(path) == []
    append_judgement(path, FIRST)
    assert opened(path) == [FIRST]


def test_names_that_look_like_numbers_stay_names(tmp_path: Path):
    path = tmp_path / "bisect.jsonl"
    judgement = Judgement(sites=frozenset({"nan", "inf"}), holds=True)
    for _ in range(2):
        known = opened(path, sites=["nan", "inf", "-inf"])
        append_judgement(path, judgement)
    assert known == [judgement]


def test_a_last_line_is_dropped_wherever_it_was_cut_off_and_the_next_one_is_whole(path: Path):
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in range(1, last):
        path.write_bytes(whole[:-cut])
        assert opened(path) == [FIRST]
        append_judgement(path, SECOND)
        assert path.read_bytes() == whole


def test_a_broken_line_in_the_middle_is_named(path: Path):
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"sites": "embed"}', lines[2], ""]))
    with pytest.raises(RunFolderError, match="line 2 cannot be read") as error:
        opened(path)
    assert "it does not hold the sites and their judgement" in str(error.value)


@pytest.mark.parametrize("content", ["my notes", "loss\n0.1\n", '{"loss": 1}\n', "[]\n", '{"question": "smalle'])
def test_another_programs_file_is_refused_and_left_alone(tmp_path: Path, content: str):
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(BisectError, match="does not hold the judgements of a bisection"):
        opened(path)
    assert path.read_text() == content


def test_another_question_is_refused(path: Path):
    with pytest.raises(BisectError) as error:
        opened(path, question="smallest_bad")
    assert str(error.value) == (
        f"'{path}' holds the judgements of another bisection.\n"
        "  why: it was made by smallest_wide.\n"
        "  fix: name another file, or delete this one."
    )


def test_other_sites_are_refused(path: Path):
    with pytest.raises(BisectError, match=r"made by smallest_wide with other sites\."):
        opened(path, sites=[*SITES, "norm"])


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path):
    with pytest.raises(BisectError, match="its folder does not exist"):
        opened(tmp_path / "nowhere" / "bisect.jsonl")
