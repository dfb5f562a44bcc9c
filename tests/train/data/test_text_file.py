from pathlib import Path

import pytest

from roundoff.errors import DataError
from roundoff.train.data import IGNORED, PADDING, Draw
from roundoff.train.data.sources import read_text


def test_the_target_of_each_byte_is_the_next_and_windows_are_adjacent(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(100)))
    train, test = read_text(path, context=4)
    assert (len(train), len(test)) == (22, 2)
    batch = train[Draw((0, 21))]
    assert batch.inputs.tolist() == [[0, 1, 2, 3], [84, 85, 86, 87]]
    assert batch.targets.tolist() == [[1, 2, 3, 4], [85, 86, 87, 88]]
    assert test[Draw((0,))].inputs.tolist() == [[90, 91, 92, 93]]


def test_padding_has_no_target(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(100)))
    train, _ = read_text(path, context=4)
    assert train[Draw((PADDING,))].targets.tolist() == [[IGNORED] * 4]


def test_a_text_too_short_is_refused(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"hello " * 10)
    with pytest.raises(DataError) as caught:
        read_text(path, context=8)
    assert str(caught.value) == (
        f"'{path}' is too short.\n"
        "  why: its last tenth, 6 bytes, does not fill one window of 8 + 1.\n"
        "  fix: use a longer text, or a smaller --context."
    )


def test_a_missing_text_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"cannot be read\.\n  why: No such file or directory\."):
        read_text(tmp_path / "nowhere.txt", context=8)


def test_limit_counts_windows_of_the_training_part(tmp_path: Path):
    (tmp_path / "t.txt").write_bytes(bytes(range(200)) * 10)
    train, test = read_text(tmp_path / "t.txt", context=8, limit=5)
    whole, same = read_text(tmp_path / "t.txt", context=8)
    assert (len(train), len(whole), len(test)) == (5, 224, len(same))
